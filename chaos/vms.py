"""The VMs as observed from outside: the provider's directory and the processes of this machine.

A VM is a directory with an agent process. Whether an agent runs, which server created it and when its deletion began is read
from files and /proc, not from the servers. Processes are killed by PID and start time.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chaos import children
from nstance.model import ids
from nstance.providers import processes


@dataclass(frozen=True, slots=True)
class Seen:
    """How a VM was created; kept after it is gone."""

    id: str
    maker: str  # the incarnation of the server that created it
    made: float


class Vms:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.seen: dict[str, Seen] = {}

    def ids(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.root) if ids.is_instance_id(name))
        return []

    def process(self, id: str) -> processes.Process | None:
        with contextlib.suppress(OSError, ValueError):
            raw = json.loads((self.root / id / "process.json").read_text())
            return processes.Process(raw["pid"], raw["start"])
        return None

    def running(self) -> dict[str, processes.Process]:
        found = {id: self.process(id) for id in self.ids()}
        return {id: process for id, process in found.items() if process is not None and processes.is_running(process)}

    def look(self) -> None:
        """Remember the creators of all VMs: they are unknown once the directory is gone."""
        for id in self.ids():
            if id not in self.seen:
                with contextlib.suppress(OSError, ValueError):
                    path = self.root / id / "instance.json"
                    raw = json.loads(path.read_text())
                    self.seen[id] = Seen(id, str(raw["env"].get("LOGNAME", "")), path.stat().st_mtime)

    def deletions(self) -> dict[str, float]:
        """When the deletion of each instance began."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.root / ".ids"):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    if status.st_size:
                        found[entry.name] = status.st_mtime
        return found

    def send(self, id: str, number: signal.Signals) -> float | None:
        """When it was sent; None if no process is left."""
        process = self.process(id)
        if process is None or not processes.is_running(process):
            return None
        with contextlib.suppress(ProcessLookupError):
            at = time.time()
            os.kill(process.pid, number)
            return at
        return None

    def duplicate_vms(self) -> list[str]:
        """Instances for which two agents run. An agent is the leader of its session."""
        agents: dict[str, int] = {}
        for pid, environment in self._processes():
            with contextlib.suppress(OSError):
                if os.getsid(pid) == pid and b"NSTANCE_INSTANCE_ID" in environment:
                    id = environment[b"NSTANCE_INSTANCE_ID"].decode()
                    agents[id] = agents.get(id, 0) + 1
        return [id for id, count in agents.items() if count > 1]

    def free_disks(self) -> None:
        """An agent inherits the full disk of the server that started it."""
        for pid, _ in self._processes():
            children.free_disk(pid)

    def end(self) -> int:
        """Kill all processes of this directory. Returns how many are left."""
        remaining = 0
        for _ in range(200):
            found = [
                processes.Process(pid, start) for pid, _ in self._processes() if (start := processes.start_of(pid))
            ]
            remaining = len(found)
            if not found:
                break
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    if processes.is_running(process):
                        os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.05)
        return remaining

    def _processes(self) -> Iterator[tuple[int, dict[bytes, bytes]]]:
        """All processes of this directory, by their environment or their command line."""
        mark = os.fsencode(self.root)
        for name in os.listdir("/proc"):
            if not name.isdecimal() or int(name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                raw = Path("/proc", name, "environ").read_bytes()
                environment = dict(line.partition(b"=")[::2] for line in raw.split(b"\0"))
                agent = environment.get(b"NSTANCE_IDENTITY_DIR", b"").startswith(mark + b"/")
                launcher = (mark + b"/") in Path("/proc", name, "cmdline").read_bytes()
                if agent or launcher:
                    yield int(name), environment
