#!/usr/bin/env bash
# `make test-pythons`: the smoke test, the agent tests and the agent file, with the oldest and the newest supported Python on
# this machine, each in its own virtual environment below temp/. Choose others with
# PYTHONS="/usr/bin/python3 /opt/python3.13". The Python of .venv is skipped, because `make test` covers it.
set -euo pipefail
cd "$(dirname "$0")/.."

version='import sys; sys.version_info >= (3, 11) and print("%03d.%03d.%03d" % sys.version_info[:3], sys.executable)'
tests=(
  tests/unit/test_patterns.py tests/unit/agent tests/unit/wire tests/unit/config/test_config_jsonc.py
  tests/component/test_agent_*.py tests/component/test_wire_c*.py tests/e2e/test_agent_process.py
)

candidates=(/usr/bin/python3 python3.{11,12,13,14} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3)
[[ -z ${PYTHONS:-} ]] || read -r -a candidates <<<"$PYTHONS"

# Every supported Python, as "version path", oldest first.
pythons=$(for each in "${candidates[@]}"; do "$each" -c "$version" 2>/dev/null || true; done | sort -u -k1,1)
[[ -n $pythons ]] || { echo "test-pythons: expected Python 3.11 or newer, found none" >&2; exit 1; }
[[ -n ${PYTHONS:-} ]] || pythons=$(printf '%s\n' "$pythons" | sed -n '1p;$p' | uniq)
covered=$(.venv/bin/python -c "$version" 2>/dev/null | cut -d' ' -f1 || true)

while read -r -u 3 number python; do # not from standard input, which tests may read
  if [[ $number == "$covered" && -z ${PYTHONS:-} ]]; then
    echo "test-pythons: $python is the Python of .venv, which 'make test' covers"
    continue
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    { echo "test-pythons: $python cannot create virtual environments; install python3-venv (apt-get install python3-venv)" >&2; exit 1; }
  echo "test-pythons: $("$python" --version) at $python"
  venv=temp/python-$number
  # An existing environment of this version is used again.
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
  "$venv/bin/python" -m nstance.dev --ports auto --dir "$venv/dev" --once
  PYTHON="$venv/bin/python" OUT="$venv/nstance-agent.pyz" scripts/build-agent-pyz.sh
  NSTANCE_TEST_PYZ="$PWD/$venv/nstance-agent.pyz" "$venv/bin/pytest" -q -n 2 -p no:cacheprovider "${tests[@]}"
done 3<<<"$pythons"
