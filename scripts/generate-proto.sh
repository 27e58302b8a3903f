#!/bin/sh
# Generates nstance/v1 from proto/ in the given folder; with --check only compares.
#   BIN=.venv/bin scripts/generate-proto.sh [--check] src
set -eu
cd "$(dirname "$0")/.."
bin=$(cd "${BIN:-.venv/bin}" && pwd)
check=
[ "$1" != --check ] || { check=1; shift; }

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
PATH="$bin:$PATH" "$bin/python" -m grpc_tools.protoc -I proto \
  --python_out="$out" --mypy_out=quiet:"$out" --grpclib_python_out="$out" proto/nstance/v1/*.proto

if [ -z "$check" ]; then
  cp "$out"/nstance/v1/* "$1/nstance/v1/"
  exit
fi
for generated in "$out"/nstance/v1/*; do
  cmp -s "$generated" "$1/nstance/v1/${generated##*/}" || { echo "$1/nstance/v1/${generated##*/} is out of date: run 'make proto'" >&2; exit 1; }
done
