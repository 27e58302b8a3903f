#!/bin/sh
# What `make check` runs: says what is there, what is missing, what it is for and how to get it. Changes nothing.
missing=0

have() { # name, what for, package, required or optional
  if command -v "$1" >/dev/null 2>&1; then
    printf '  ok       %-8s %s\n' "$1" "$2"
  elif [ "$4" = required ]; then
    printf '  MISSING  %-8s %s; install it: apt-get install %s, or brew install %s\n' "$1" "$2" "$3" "$3"
    missing=1
  else
    printf '  without  %-8s %s; apt-get install %s, or brew install %s\n' "$1" "$2" "$3" "$3"
  fi
}

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  found=$("$python" --version 2>&1 | head -n 1)
  printf '  MISSING  %-8s 3.11 or newer runs everything; found: %s; name another one: make PYTHON=/path/to/python3.12\n' python "$found"
  missing=1
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  printf '  MISSING  %-8s makes .venv; install it: apt-get install python3-venv\n' venv
  missing=1
else
  printf '  ok       %-8s %s\n' python "$("$python" --version 2>&1) at $(command -v "$python")"
fi
have tmux 'shows agents (make dev-tmux)' tmux required
have git 'fetches and versions the code' git required
have openssl 'checks certificates (a few tests)' openssl optional
have aws 'tries dev-s3 (a few tests)' awscli optional
have kubectl 'speaks to dev-k8s and to clusters (make dev-tmux-k8s, a few tests)' kubectl optional

if [ "$missing" = 1 ]; then
  echo 'something is missing: see above'
  exit 1
fi
echo 'all there; start with: make dev'
