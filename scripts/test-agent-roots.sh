#!/usr/bin/env bash
# `make test-agent-roots`: the userdata script and the agent's bundle in clean roots of Debian, without Python, made by
# mmdebstrap below temp/roots. ROOTS="bookworm trixie" names the releases.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
skip() { echo "test-agent-roots: skipped: $1"; exit 0; }
[[ $(id -u) == 0 ]] || skip "expected root, which chroot needs"
command -v mmdebstrap >/dev/null || skip "expected mmdebstrap (apt-get install mmdebstrap)"
command -v unshare >/dev/null || skip "expected unshare (apt-get install util-linux)"

folder=temp/roots
mkdir -p "$folder"
for release in ${ROOTS:-bookworm trixie}; do
  [[ -e $folder/$release.tar ]] && continue
  echo "test-agent-roots: making a root of $release (half a minute)"
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,curl "$release" "$folder/$release.new.tar" ||
    skip "failed to make a root of $release: its packages cannot be fetched"
  mv "$folder/$release.new.tar" "$folder/$release.tar"
done
NSTANCE_TEST_ROOTS="$PWD/$folder" "$python" -m pytest -q -rs tests/e2e/test_agent_roots.py
