#!/bin/sh
# Builds dist/nstance-agent.pyz from this checkout: one file with everything except Python.
# It contains compiled extensions, so it runs only on this architecture and this minor version of Python.
#   PYTHON=.venv/bin/python OUT=dist/nstance-agent.pyz scripts/build-agent-pyz.sh
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
out=${OUT:-dist/nstance-agent.pyz}
if ! "$python" -c 'import shiv' 2>/dev/null; then
  echo "build-agent-pyz: expected shiv with $python; run 'make install' first, or set PYTHON" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"

# Built from a copy, so that no files remain in the checkout.
mkdir "$work/checkout"
cp -R pyproject.toml LICENSE src "$work/checkout/"
[ ! -f README.md ] || cp README.md "$work/checkout/"
"$python" -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
  --target "$work/site" "$work/checkout[agent]"
# Only what the agent imports: no code of the server on an instance.
for part in "$work"/site/nstance/*/; do
  grep -qx "$(basename "$part")" scripts/agent-packages.txt || rm -rf "$part"
done
rm -rf "$work/site/bin"

# With another Python the extensions are missing, so it fails at once with a clear message.
"$python" - > "$work/fits.py" <<'END'
import platform, sys

found = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"
print(f"""import platform, sys
found = "Python %d.%d on %s" % (sys.version_info[0], sys.version_info[1], platform.machine())
if found != "{found}":
    sys.exit("nstance-agent: expected {found}, found " + found + "; build another file with make agent-pyz")""")
END

# Reproducible: the same checkout gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
"$python" -m shiv.cli --reproducible --compressed --site-packages "$work/site" \
  --python '/usr/bin/env python3' --preamble "$work/fits.py" --entry-point nstance.agent.main:main --output-file "$work/agent.pyz"
mv "$work/agent.pyz" "$out"
echo "$out: $(wc -c < "$out") bytes, for $("$python" -c 'import platform; print(platform.machine(), "Python", ".".join(platform.python_version_tuple()[:2]))')"
