"""`make clean-dev`: stop what `make dev` and `make dev-tmux` started, and remove their files.

It stops only recorded processes, agents of instance folders, and the tmux windows of these instances: another checkout may
have windows in the same session.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nstance.dev import leftovers
from nstance.model.ids import InstanceId
from nstance.providers import tmux
from nstance.providers.instance_dirs import InstanceDirs

TMUX_TIMEOUT_SECONDS = 10.0


def clean(temp: Path) -> list[str]:
    """Returns what was done, in words."""
    recorded = [temp / "pids", *sorted(temp.glob("*/pids"))]
    done = [f"stopped {name}" for pids in recorded for name in leftovers.end_servers(pids)]
    folders = sorted(temp.glob("*/instances"))
    agents = sum(map(leftovers.end_agents, folders))
    if agents:
        done.append(f"stopped {agents} agents")
    windows = sum(_close_window(id) for folder in folders for id in InstanceDirs(folder).ids())
    if windows:
        done.append(f"closed {windows} windows of the tmux session {tmux.SESSION}")
    if temp.exists():
        shutil.rmtree(temp)
        done.append(f"removed {temp}")
    return done


def _close_window(id: InstanceId) -> bool:
    """The session ends with its last window."""
    if shutil.which("tmux") is None:
        return False
    command = ["tmux", "kill-window", "-t", f"={tmux.SESSION}:={tmux.window_name(id)}"]
    return subprocess.run(command, capture_output=True, timeout=TMUX_TIMEOUT_SECONDS, check=False).returncode == 0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m nstance.dev.clean", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--temp",
        type=Path,
        default=Path(os.environ.get("NSTANCE_DEV_TEMP") or "temp"),
        help="the folder to remove (temp)",
    )
    for line in clean(parser.parse_args(argv).temp.absolute()) or ["nothing to clean"]:
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
