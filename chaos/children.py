"""Processes that this run starts itself: servers and their storage. Each one is ended by its own number.

A server writes its log into a pipe that a thread empties into a file: a full disk, made by a limit on what the server's
process may write, must not hide what it has to say about it. Every start is an incarnation with a log of its own, and
the agents that it creates carry its name in their environment (`LOGNAME`), so a VM says who made it.
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

PATIENCE = 20.0


@dataclass
class Life:
    """One process from start to end, as far as this run caused it."""

    name: str  # a.1, a.2, …
    process: subprocess.Popen[bytes]
    log: Path
    began: float
    ended: float | None = None
    meant: bool = False  # its end was our doing
    stops: list[tuple[float, float]] = field(default_factory=list)  # when it was stopped and continued

    @property
    def runs(self) -> bool:
        return self.process.poll() is None


class Child:
    """A program that is started again and again under one name."""

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
        threading.Thread(target=_keep, args=(reading, log), daemon=True).start()
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
        """Its exit status, after it really ended."""
        life = self.life
        life.meant = True
        self.resume()
        self.send(number)
        try:
            status = await asyncio.to_thread(life.process.wait, PATIENCE)
        except subprocess.TimeoutExpired:
            life.process.kill()
            status = await asyncio.to_thread(life.process.wait, PATIENCE)
        life.ended = time.time()
        return status

    def fill_disk(self) -> None:
        """From now on it can write to no file: the largest one it may make has no bytes. Needs no privilege, and
        can be taken back; the limit that counts is the soft one."""
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


def _status(pid: int, what: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(what):
                return int(line.split()[1])
    return 0


def _keep(source: int, log: Path) -> None:
    with open(source, "rb", buffering=0) as reading, log.open("ab", buffering=0) as file:
        while data := reading.read(65536):
            file.write(data)
