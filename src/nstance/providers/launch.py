"""The first moments of an agent's process: says who it is, then becomes the agent.

The agent's process records itself before it becomes the agent, and only one can: whoever finds a record ends at once. So
a server may die at any moment of a create, and repeating the create never makes a second agent. The trap is the moment
between the start and the record: a detached process inherits the instance's lock and keeps it until it is the agent.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from nstance.providers import processes

RECORD = "instance.json"
PROCESS = "process.json"
PID = "agent.pid"
LOG = "agent.log"

_BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nstance.providers import launch; launch.main()"


def command(home: Path, *, lock: int | None = None) -> list[str]:
    """The command line that starts an instance's agent: detached, holding the lock, or in the foreground."""
    packages = str(Path(__file__).resolve().parents[2])
    mode = [] if lock is None else ["--detach", str(lock)]
    # -I and -S: it imports next to nothing, so that a start costs an interpreter's 10 ms and not the site packages'.
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, packages, str(home), *mode]


def main() -> None:
    home = Path(sys.argv[1])
    record = json.loads((home / RECORD).read_bytes())
    if len(sys.argv) > 2:
        _detach(int(sys.argv[3]))
    _claim(home)
    # The environment is the recorded one and nothing else: the server's own holds secrets.
    environment: Mapping[str, str] = record["env"]
    if "TERM" in os.environ:
        environment = {**environment, "TERM": os.environ["TERM"]}
    os.chdir(home)
    os.execvpe(record["command"][0], record["command"], environment)


def _detach(lock: int) -> None:
    """Leave the server's session and children behind. The first process stays until the second one has become the agent
    or failed: only then does the server go on."""
    waiting, started = os.pipe()  # both ends close themselves when the agent takes over
    if os.fork():
        os.close(started)
        os.close(lock)
        os.read(waiting, 1)  # returns when the other end is closed
        os._exit(0)
    os.close(waiting)
    os.setsid()
    os.set_inheritable(lock, False)


def _claim(home: Path) -> None:
    """Write down who we are, or end because somebody was first."""
    pid = os.getpid()
    body = json.dumps({"pid": pid, "start": processes.start_of(pid)})
    draft = home / f".{PROCESS}.{pid}"
    draft.write_text(body)
    try:
        os.link(draft, home / PROCESS)  # fails if there is one
    except FileExistsError:
        raise SystemExit(f"the agent in {home} was started already") from None
    finally:
        draft.unlink()
    pid_draft = home / f".{PID}.{pid}"
    pid_draft.write_text(f"{pid}\n")
    pid_draft.replace(home / PID)
