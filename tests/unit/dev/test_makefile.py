"""`make install`: which Python .venv is of."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy that installs nothing, with a .venv of another Python."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    other = tmp_path / ".venv" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.write_text("#!/bin/sh\necho another Python\n")
    other.chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    return tmp_path


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python that makes environments quickly: without pip."""
    made = tmp_path / "python"
    made.write_text(f'#!/bin/sh\n[ "$2" != venv ] || set -- "$@" --without-pip\nexec {sys.executable} "$@"\n')
    made.chmod(0o755)
    return made


def install(checkout: Path, *words: str) -> str:
    command = ["make", "install", "PIP=true", *words]
    # What was said to a `make test` around this test is not meant for this one.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    done = subprocess.run(command, cwd=checkout, env=clean, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_an_environment_of_another_python_is_made_again(checkout: Path, python: Path) -> None:
    assert "is of another Python" in install(checkout, f"PYTHON={python}")
    found = subprocess.run(
        [checkout / ".venv/bin/python", "-c", "import sys; print(sys.version)"], capture_output=True, text=True
    )
    assert found.stdout.strip() == sys.version
    mark = checkout / ".venv" / "mark"
    mark.touch()
    assert "another Python" not in install(checkout, f"PYTHON={python}")
    assert mark.exists()


def test_where_no_python_is_named_the_environment_stays(checkout: Path) -> None:
    assert "another Python" not in install(checkout)
    assert "another Python" in (checkout / ".venv/bin/python").read_text()
