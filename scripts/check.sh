#!/bin/sh
# `make check`: lists the required programs, what they are for and how to install missing ones. Changes nothing.
missing=0

check_program() { # name, purpose, package, required or optional
  if command -v "$1" >/dev/null 2>&1; then
    printf '  ok       %-8s %s\n' "$1" "$2"
  elif [ "$4" = required ]; then
    printf '  MISSING  %-8s %s; install it: apt-get install %s, or brew install %s\n' "$1" "$2" "$3" "$3"
    missing=1
  else
    printf '  OPTIONAL %-8s %s; apt-get install %s, or brew install %s\n' "$1" "$2" "$3" "$3"
  fi
}

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  found=$("$python" --version 2>&1 | head -n 1)
  printf '  MISSING  %-8s expected 3.11 or newer, found %s; choose another one: make PYTHON=/path/to/python3.12\n' python "$found"
  missing=1
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  printf '  MISSING  %-8s creates .venv; install it: apt-get install python3-venv\n' venv
  missing=1
else
  printf '  ok       %-8s %s\n' python "$("$python" --version 2>&1) at $(command -v "$python")"
fi
check_program tmux 'runs agents in windows (make dev-tmux)' tmux required
check_program git 'versions the code' git required
check_program openssl 'checks certificates (a few tests)' openssl optional
check_program aws 'tests dev-s3 (a few tests)' awscli optional
check_program promtool 'checks metrics, alerts and dashboards (a few tests)' prometheus optional
check_program kubectl 'talks to dev-k8s and to clusters (make dev-tmux-k8s, a few tests)' kubectl optional

if [ "$missing" = 1 ]; then
  echo 'required programs are missing: install them as shown above'
  exit 1
fi
echo 'ready; start with: make dev'
