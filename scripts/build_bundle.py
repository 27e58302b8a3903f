"""Builds dist/nstance-<program>-linux-<arch>.tar.gz: a program with its own Python, for machines that have none.

    python scripts/build_bundle.py agent --arch amd64 --out dist

The interpreter is a relocatable CPython (python-build-standalone) that a Go module carries for every platform, so `go` is
needed to fetch it. Its checksum is pinned below. The same checkout gives the same bytes.
"""

import argparse
import gzip
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULE = "github.com/kluctl/go-embed-python@v0.0.0-3.14.6-20260610-1"
MODULE_SUM = "h1:oGUS7++Wm3LgxUfD6AmJgKbKQD2wdQFO9PzyJv6T+E4="
PYTHON = "3.14"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# glibc 2.28 is the oldest that is supported: wheels for it and for older ones. pip takes only those that are named.
PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(28, 16, -1)), "manylinux2014")
SINGLE_MODULES = ("__init__.py", "clock.py", "http_client.py", "key_pairs.py", "points.py", "streams.py")

PROGRAMS = ("agent", "server")  # each with an extra in pyproject.toml and a list of packages

# Parts of Python that a daemon without windows, tests, packages and databases never imports.
UNUSED = frozenset(
    (
        *("_pyrepl", "config-3.14-aarch64-linux-gnu", "config-3.14-x86_64-linux-gnu", "curses", "dbm", "doctest.py"),
        *("ensurepip", "idlelib", "lib-dynload", "pdb.py", "profile", "profiling", "pydoc.py"),
        *("pydoc_data", "site-packages", "test", "tkinter", "turtle.py", "turtledemo", "unittest", "venv"),
        *("xmlrpc",),
    )
)

LAUNCHER = """#!/bin/sh
# The link in /usr/local/bin is followed to the folder that holds Python.
dir=$(dirname "$(readlink -f "$0")")
exec "$dir/python3" -I -S -B -c 'from nstance.{program}.main import main; main()' "$@"
"""


class BuildError(Exception):
    """The bundle cannot be built; the message says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--arch", choices=sorted(MACHINES), action="append", help="may be repeated; default: both")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the bundles (default: dist)")
    options = parser.parse_args()
    try:
        interpreters = fetch_interpreters()
        for arch in options.arch or sorted(MACHINES):
            made = build(options.program, arch, interpreters, options.out)
            sys.stdout.write(f"{made}: {made.stat().st_size:,} bytes\n")
    except BuildError as error:
        sys.stderr.write(f"build-bundle: {error}\n")
        return 1
    return 0


def fetch_interpreters() -> Path:
    """The folder with one interpreter per platform."""
    if shutil.which("go") is None:
        raise BuildError("expected the program `go`, which fetches the interpreter; install Go 1.21 or newer")
    with tempfile.TemporaryDirectory() as empty:  # outside of any Go module
        done = subprocess.run(["go", "mod", "download", "-json", MODULE], cwd=empty, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"failed to fetch {MODULE}: {(done.stdout + done.stderr).strip()}")
    answer = json.loads(done.stdout)
    if answer["Sum"] != MODULE_SUM:
        raise BuildError(f"expected the checksum {MODULE_SUM} of {MODULE}, found {answer['Sum']}; do not use it")
    return Path(answer["Dir"]) / "python" / "internal" / "data"


def build(program: str, arch: str, interpreters: Path, out: Path) -> Path:
    host = {machine: name for name, machine in MACHINES.items()}.get(platform.machine())
    if host is None:
        raise BuildError(f"expected to run on one of {', '.join(MACHINES.values())}, found {platform.machine()}")
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / f"nstance-{program}"
        library = unpack_interpreter(interpreters / f"linux-{arch}", tree)
        install_program(program, arch, library, Path(work))
        compiler = tree / "bin" / "python3"
        if host != arch:  # bytecode is the same on every machine
            unpack_interpreter(interpreters / f"linux-{host}", Path(work) / "host")
            compiler = Path(work) / "host" / "bin" / "python3"
        compile_bytecode(compiler, library)
        launcher = tree / "bin" / f"nstance-{program}"
        launcher.write_text(LAUNCHER.replace("{program}", program))
        launcher.chmod(0o755)
        out.mkdir(parents=True, exist_ok=True)
        return pack(tree, out / f"nstance-{program}-linux-{arch}.tar.gz")


def unpack_interpreter(source: Path, tree: Path) -> Path:
    """Unpacks what a daemon needs of Python; the library's folder."""
    binary, library = tree / "bin" / "python3", tree / "lib" / f"python{PYTHON}"
    binary.parent.mkdir(parents=True)
    binary.write_bytes(gzip.decompress((source / "bin" / f"python{PYTHON}.gz").read_bytes()))
    binary.chmod(0o755)
    for path in sorted((source / "lib" / f"python{PYTHON}").rglob("*")):
        inside = path.relative_to(source / "lib" / f"python{PYTHON}")
        if inside.parts[0] in UNUSED or inside.parts[0].removesuffix(".gz") in UNUSED or not path.is_file():
            continue
        target = library / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gz":
            target.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        else:
            target.write_bytes(path.read_bytes())
    (library / "lib-dynload").mkdir()  # Python looks for it; its modules are inside the program
    return library


def wheels_for(arch: str) -> list[str]:
    """Options of pip: which wheels run on the machine."""
    platforms = [f"--platform={each}_{MACHINES[arch]}" for each in PLATFORMS]
    return ["--only-binary=:all:", *platforms, f"--python-version={PYTHON}", "--implementation=cp"]


def install_program(program: str, arch: str, library: Path, work: Path) -> None:
    """Installs the program and its libraries beside Python's own modules, so that no start-up file has to be read."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["optional-dependencies"][program]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *wheels_for(arch)]
    command += ["-c", str(ROOT / "constraints.txt")]
    site = work / "site"
    done = subprocess.run([*command, f"--target={site}", *requirements], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"failed to install the libraries of {program} for {arch}: {done.stderr.strip()}")
    shutil.rmtree(site / "bin", ignore_errors=True)
    shutil.copytree(site, library, dirs_exist_ok=True)
    for part in (ROOT / "scripts" / f"{program}-packages.txt").read_text().split():
        shutil.copytree(ROOT / "src" / "nstance" / part, library / "nstance" / part, ignore=_not_code)
    about = library / f"nstance-{project['version']}.dist-info"
    about.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: nstance\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(metadata)  # `--version` asks for it
    for name in SINGLE_MODULES:
        shutil.copy2(ROOT / "src" / "nstance" / name, library / "nstance" / name)


def _not_code(_folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__" or name.endswith(".pyi")}


def compile_bytecode(compiler: Path, library: Path) -> None:
    """Replaces every module by its bytecode, which starts faster and depends on no time stamp."""
    script = (
        "import pathlib, py_compile, sys\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).rglob('*.py')):\n"
        "    name = str(path.relative_to(sys.argv[1]))\n"
        "    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH\n"
        "    py_compile.compile(str(path), str(path) + 'c', name, doraise=True, invalidation_mode=mode)\n"
        "    path.unlink()\n"
    )
    done = subprocess.run([compiler, "-I", "-S", "-B", "-c", script, library], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"failed to compile the program: {done.stderr.strip()}")


def pack(tree: Path, target: Path) -> Path:
    """A tar file whose bytes depend on nothing but the files' names, modes and contents."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in [tree, *_below(tree)]:
            member = archive.gettarinfo(str(path), arcname=str(path.relative_to(tree.parent)))
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = "root"
            member.mode = 0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644
            if path.is_file():
                with path.open("rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)
    new = target.with_name(target.name + ".new")
    new.write_bytes(gzip.compress(body.getvalue(), 9, mtime=0))
    new.rename(target)
    return target


def _below(tree: Path) -> Iterator[Path]:
    return iter(sorted(tree.rglob("*")))


if __name__ == "__main__":
    sys.exit(main())
