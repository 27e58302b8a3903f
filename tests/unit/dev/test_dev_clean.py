"""`make clean-dev` touches only what this checkout started."""

import shutil
import subprocess
from pathlib import Path

import pytest

from nstance.dev import clean
from nstance.model.ids import InstanceId
from nstance.providers import tmux
from support.dev_tmux import own_tmux as own_tmux
from support.dev_tmux import windows

OURS, THEIRS = (InstanceId(f"dmd-01hxyzab2cd3ef4gh5jk6mn7p{last}") for last in "qr")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs the program tmux")
@pytest.mark.usefixtures("own_tmux")
def test_windows_of_another_checkout_stay(tmp_path: Path) -> None:
    command = [
        "tmux",
        "new-session",
        "-d",
        "-s",
        tmux.SESSION,
        "-n",
        tmux.window_name(THEIRS),
        "sleep",
        "600",
    ]
    subprocess.run(command, check=True)
    subprocess.run(
        ["tmux", "new-window", "-d", "-t", tmux.SESSION, "-n", tmux.window_name(OURS), "sleep", "600"],
        check=True,
    )
    temp = tmp_path / "temp"
    (temp / "dev-1" / "instances" / OURS).mkdir(parents=True)
    assert "closed 1 windows of the tmux session nstance-dev-agents" in clean.clean(temp)
    assert windows() == {tmux.window_name(THEIRS)}
    assert not temp.exists()
