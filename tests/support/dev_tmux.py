"""What tests of the Procfile and tmux need, and a tmux server of their own, so that no other windows are touched."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nstance.providers import tmux

ROOT = Path(__file__).parents[2]
HONCHO = ROOT / ".venv/bin/honcho"
NEEDS = (
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs the program tmux"),
    pytest.mark.skipif(not HONCHO.exists(), reason="needs .venv, where the Procfile finds its programs: make install"),
)


@pytest.fixture
def own_tmux(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Not tmp_path: the name of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="nst-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMUX_TMPDIR", folder)
        yield
        subprocess.run(["tmux", "kill-server"], capture_output=True, check=False)


def windows() -> set[str]:
    command = ["tmux", "list-windows", "-t", tmux.SESSION, "-F", "#{window_name}"]
    return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())
