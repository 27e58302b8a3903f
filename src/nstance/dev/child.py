"""A child process with its log in a file.

Its log is read back from the file instead of a pipe: a paused terminal would fill a pipe, and a server that waits to log a
line would lose its lease. It has its own session, so that Ctrl+C reaches only the parent, which then stops it in order.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nstance.clock import Clock
from nstance.dev import leftovers
from nstance.dev.errors import DevError

GRACE_SECONDS = 12.0  # a little more than the longest orderly stop of a server
ADMIN_TIMEOUT_SECONDS = 60.0


class Child:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        temp: Path,
        clock: Clock,
        cwd: Path | None = None,
    ) -> None:
        """`temp`: the folder for its log and its process ID."""
        self.name = name
        self.log = temp / "logs" / f"{name}.log"
        self.started = 0.0  # on the monotonic clock
        self._pids = temp / "pids"
        self._command = list(command)
        self._environment = {**environment, leftovers.MARK: str(self._pids)}
        self._cwd = cwd
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._offset = 0  # of the log, up to which it was read
        self._partial_line = b""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """Stops a process of an earlier run first, whose parent was killed."""
        await asyncio.to_thread(leftovers.end_server, self._pids, self.name)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            if self._process is None:
                self._offset = log.tell()  # skip the lines of earlier runs
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started = self._clock.monotonic()
        leftovers.record(self._pids, self.name, self._process.pid)

    def new_lines(self) -> list[str]:
        """Log lines since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._offset)
            new = log.read()
        self._offset += len(new)
        *lines, self._partial_line = (self._partial_line + new).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Asks it to exit and kills it after the grace period."""
        if self._process is None:
            return
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a paused process does not handle SIGTERM
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self._process.wait()
        leftovers.remove_record(self._pids, self.name)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}"


async def run_admin(*arguments: str, environment: Mapping[str, str], timeout: float = ADMIN_TIMEOUT_SECONDS) -> bytes:
    """The output of nstance-admin, run as a person would. Raises DevError."""
    what = f"nstance-admin {' '.join(arguments[:2])}"
    process = await asyncio.create_subprocess_exec(
        program_path("nstance-admin"),
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout):
            output, error_output = await process.communicate()
    except TimeoutError:
        raise DevError(f"{what} did not end within {timeout:g} s: check that the storage runs") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise DevError(f"{what} failed: {error_output.decode(errors='replace').strip()}")
    return output.strip()


def program_path(name: str) -> str:
    """The path of one of our programs, next to the running interpreter."""
    return os.path.join(os.path.dirname(sys.executable), name)
