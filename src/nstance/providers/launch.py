"""The launcher of an instance's process, an agent or QEMU: records the process, then becomes it.

The process records itself before it becomes the agent or QEMU, and a second one that finds a record exits at once. So a
server may die at any moment of a create, and repeating the create never starts a second one. The trap is the moment
between the start and the record: a detached process inherits the instance's lock and keeps it until then.
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


def command(directory: Path, *, lock: int | None = None) -> list[str]:
    """The command line that starts an instance's agent: detached, holding the lock, or in the foreground."""
    packages = str(Path(__file__).resolve().parents[2])
    mode = [] if lock is None else ["--detach", str(lock)]
    # -I and -S: few imports, so that a start costs the interpreter's 10 ms without site packages.
    return [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, packages, str(directory), *mode]


def main() -> None:
    directory = Path(sys.argv[1])
    record = json.loads((directory / RECORD).read_bytes())
    if len(sys.argv) > 2:
        _detach(int(sys.argv[3]))
    _record_process(directory)
    # Only the recorded environment: the server's own contains secrets.
    environment: Mapping[str, str] = record["env"]
    if "TERM" in os.environ:
        environment = {**environment, "TERM": os.environ["TERM"]}
    os.chdir(directory)
    os.execvpe(record["command"][0], record["command"], environment)


def _detach(lock: int) -> None:
    """Leave the server's session. The first process waits until the second one has become the agent or failed: only then
    does the server continue."""
    waiting, started = os.pipe()  # both ends close themselves when the agent takes over
    if os.fork():
        os.close(started)
        os.close(lock)
        os.read(waiting, 1)  # returns when the other end is closed
        os._exit(0)
    os.close(waiting)
    os.setsid()
    os.set_inheritable(lock, False)


def _record_process(directory: Path) -> None:
    """Record this process, or exit because another one was first."""
    pid = os.getpid()
    body = json.dumps({"pid": pid, "start": processes.start_of(pid)})
    temporary = directory / f".{PROCESS}.{pid}"
    with temporary.open("w") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())  # an empty record, as after a power cut, would say that nobody knows whether it runs
    try:
        os.link(temporary, directory / PROCESS)  # fails if there is one
    except FileExistsError:
        raise SystemExit(f"the process in {directory} was started already") from None
    finally:
        temporary.unlink()
    temporary_pid = directory / f".{PID}.{pid}"
    temporary_pid.write_text(f"{pid}\n")
    temporary_pid.replace(directory / PID)
