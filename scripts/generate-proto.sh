#!/bin/sh
# Makes nstance/v1 from proto/ in the folder given, or with --check compares that folder with what would be made.
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
for made in "$out"/nstance/v1/*; do
  cmp -s "$made" "$1/nstance/v1/${made##*/}" || { echo "$1/nstance/v1/${made##*/} is not what proto/ gives: run 'make proto'" >&2; exit 1; }
done
