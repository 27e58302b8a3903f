"""The processes that a run starts itself: servers and their storage. Each one is ended by its own PID.

A server writes its log into a pipe that a thread copies to a file: a full disk, simulated by a limit on what the server's
process may write, must not suppress its log. Every start is an incarnation with a log of its own, and the agents that it
creates carry its name in their environment (`LOGNAME`), so that every VM names its creator.
"""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

END_TIMEOUT_SECONDS = 20.0


@dataclass
class Life:
    """One process from start to end."""

    name: str  # a.1, a.2, …
    process: subprocess.Popen[bytes]
    log: Path
    began: float
    ended: float | None = None
    is_end_expected: bool = False
    stops: list[tuple[float, float]] = field(default_factory=list)  # (SIGSTOP at, SIGCONT at)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None


class Child:
    """A program that is restarted under one name."""

    def __init__(self, name: str, command: Sequence[str], logs: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.lives: list[Life] = []
        self._command = command
        self._logs = logs
        self._environment = environment

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def runs(self) -> bool:
        return bool(self.lives) and self.life.runs

    @property
    def answers(self) -> bool:
        return self.runs and not self._stopped

    @property
    def _stopped(self) -> bool:
        return bool(self.life.stops) and self.life.stops[-1][1] == float("inf")

    def start(self) -> None:
        name = f"{self.name}.{len(self.lives) + 1}"
        log = self._logs / f"{name}.log"
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env={**os.environ, **self._environment, "LOGNAME": name},
                start_new_session=True,  # Ctrl-C is for this run, which then ends its children in order
            )
        finally:
            os.close(writing)
        threading.Thread(target=_copy_log, args=(reading, log), daemon=True).start()
        self.lives.append(Life(name, process, log, time.time()))

    def send(self, number: signal.Signals) -> None:
        if self.runs:
            self.life.process.send_signal(number)

    def stop(self) -> None:
        self.send(signal.SIGSTOP)
        self.life.stops.append((time.time(), float("inf")))

    def resume(self) -> None:
        if self.lives and self._stopped:
            self.send(signal.SIGCONT)
            self.life.stops[-1] = (self.life.stops[-1][0], time.time())

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End it and return its exit status."""
        life = self.life
        life.is_end_expected = True
        self.resume()
        self.send(number)
        try:
            status = await asyncio.to_thread(life.process.wait, END_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            life.process.kill()
            status = await asyncio.to_thread(life.process.wait, END_TIMEOUT_SECONDS)
        life.ended = time.time()
        return status

    def fill_disk(self) -> None:
        """Set its file size limit to 0, so that it can write to no file. Only the soft limit: it can be raised again."""
        _, hard = resource.prlimit(self.life.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.life.process.pid, resource.RLIMIT_FSIZE, (0, hard))

    def free_disk(self) -> None:
        if self.runs:
            free_disk(self.life.process.pid)

    def kilobytes(self) -> int:
        return _status(self.life.process.pid, "VmRSS:") if self.runs else 0

    def descriptors(self) -> int:
        with contextlib.suppress(OSError):
            return len(os.listdir(f"/proc/{self.life.process.pid}/fd"))
        return 0


def free_disk(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def _status(pid: int, field: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0


def _copy_log(source: int, log: Path) -> None:
    with open(source, "rb", buffering=0) as reading, log.open("ab", buffering=0) as file:
        while data := reading.read(65536):
            file.write(data)
