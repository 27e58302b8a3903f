"""Running a command with a deadline: after it, the command and its process group are killed.

Output is read through a pipe that this process closes itself: a daemon that the command left behind keeps the other end
open, and waiting for its end would leak a descriptor with each run.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_OUTPUT = 4096  # newest bytes that are kept
PIPE_READS = 32  # more than a full pipe
REAP_SECONDS = 1.0  # a killed process that hangs in the kernel is not waited for any longer


@dataclass(slots=True)
class Output:
    """The end of what a command wrote."""

    kept: bytes = b""

    def read(self, descriptor: int) -> bool:
        """Read what is there now. Returns whether there may be more."""
        try:
            chunk = os.read(descriptor, MAX_OUTPUT)
        except BlockingIOError:
            return False
        self.kept = (self.kept + chunk)[-MAX_OUTPUT:]
        return bool(chunk)

    @property
    def last_line(self) -> str:
        lines = self.kept.decode("utf-8", "replace").strip().splitlines()
        return "".join(c for c in lines[-1] if c.isprintable()) if lines else ""


async def run(
    argv: Sequence[str], *, seconds: float, output: Output | None = None, configured: float | None = None
) -> str:
    """Returns why it failed; empty for exit code 0. Without `output` it writes to this process's own streams.
    `configured`: the timeout that people know, if `seconds` is a little less."""
    with _collect(output) as sink:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )
        except (OSError, ValueError) as error:
            return f"cannot be run: {error.strerror if isinstance(error, OSError) else error}"
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        except TimeoutError:
            return f"did not end within {configured or seconds:g} s and was killed"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=REAP_SECONDS)
    if code == 0:
        return ""
    return f"exit code {code}" if code > 0 else f"killed by signal {-code}"


@contextlib.contextmanager
def _collect(output: Output | None) -> Iterator[int | None]:
    """The descriptor that the command writes to; None: this process's own streams."""
    if output is None:
        yield None
        return
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, output.read, ours)  # it sees no end of file while this process holds the other end
    try:
        yield theirs
    finally:
        os.close(theirs)
        loop.remove_reader(ours)
        for _ in range(PIPE_READS):
            if not output.read(ours):
                break
        os.close(ours)
