"""Running a command with a deadline: when its time is over, it and everything in its process group is killed.

Its output goes through a pipe that is ours to close: a daemon that the command left behind holds the other end, and
waiting for it to let go would leak a descriptor with each run.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_OUTPUT = 4096  # bytes that are kept, the newest
PIPE_READS = 32  # more than a full pipe
REAP_SECONDS = 1.0  # a killed process that hangs in the kernel is not waited for any longer


@dataclass(slots=True)
class Output:
    """The end of what a command wrote."""

    kept: bytes = b""

    def read(self, descriptor: int) -> bool:
        """What is there now; says whether there may be more."""
        try:
            got = os.read(descriptor, MAX_OUTPUT)
        except BlockingIOError:
            return False
        self.kept = (self.kept + got)[-MAX_OUTPUT:]
        return bool(got)

    @property
    def last_line(self) -> str:
        lines = self.kept.decode("utf-8", "replace").strip().splitlines()
        return "".join(c for c in lines[-1] if c.isprintable()) if lines else ""


async def run(argv: Sequence[str], *, seconds: float, output: Output | None = None) -> str:
    """Why it failed; empty if it ended with exit code 0. Without `output` it writes to where this process writes."""
    with _collecting(output) as sink:
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
            return f"did not end within {seconds:g} s and was killed"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=REAP_SECONDS)
    if code == 0:
        return ""
    return f"exit code {code}" if code > 0 else f"killed by signal {-code}"


@contextlib.contextmanager
def _collecting(output: Output | None) -> Iterator[int | None]:
    """Where the command shall write."""
    if output is None:
        yield None
        return
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, output.read, ours)  # our end sees no end of it as long as we hold theirs too
    try:
        yield theirs
    finally:
        os.close(theirs)
        loop.remove_reader(ours)
        for _ in range(PIPE_READS):
            if not output.read(ours):
                break
        os.close(ours)
