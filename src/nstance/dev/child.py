"""A server as a child process, with its log in a file.

The log is read back from that file instead of through a pipe: a terminal that somebody has paused would fill a pipe, the
server would wait in the middle of a log line, and lose its lease. It is a session of its own, so that Ctrl+C reaches only
whoever started it, who then ends it in order.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nstance.clock import Clock
from nstance.dev import leftovers

GRACE = 12.0  # seconds: a server's own longest orderly stop, and a little


class Child:
    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        pids: Path,
        clock: Clock,
    ) -> None:
        self.name = name
        self.log = log
        self.started = 0.0  # on the monotonic clock
        self._command = list(command)
        self._environment = dict(environment)
        self._folder = folder
        self._pids = pids
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._read = 0
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """A former one whose keeper died without ending it has to go first."""
        await asyncio.to_thread(leftovers.end_server, self._pids, self.name)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            if self._process is None:
                self._read = log.tell()  # what an earlier run said is not news
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started = self._clock.monotonic()
        leftovers.remember(self._pids, self.name, self._process.pid)

    def lines(self) -> list[str]:
        """What it has logged since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def stop(self, grace: float = GRACE) -> None:
        """Ask it to end, and make it end after the grace. Only this process, by its number."""
        if self._process is None:
            return
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a paused one could not even be asked
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self._process.wait()
        leftovers.forget(self._pids, self.name)


def describe(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
    return f"by {name}"


def program(name: str, executable: str) -> str:
    """The path of one of our programs, beside the interpreter that runs this."""
    return os.path.join(os.path.dirname(executable), name)
