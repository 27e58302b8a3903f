"""The command that is run after a set of files is in place.

At least once per set: a mark says for which set the command has succeeded, so a crash in between makes the next start
run it. Sets that arrive while it runs are answered by one more run, not by one each. A command that fails or hangs is
logged, reported and tried again, ever less often; the files stay, but the instance is not ready.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from nstance.agent import commands
from nstance.agent.folder import Folder, Unusable

log = logging.getLogger(__name__)

TIMEOUT = 60.0
RETRY_FIRST_SECONDS = 5.0
RETRY_MOST_SECONDS = 300.0
MARK = "on-receive.done"  # holds the number of the set; an empty one is of an older agent, and of the set in place


class OnReceive:
    def __init__(
        self, command: Sequence[str], identity: Folder, *, number: Callable[[], int], timeout: float = TIMEOUT
    ) -> None:
        """`number`: of the set in place; it blocks on the disk."""
        self.on_change: Callable[[], None] = lambda: None  # called after each run
        self.problem = ""  # why the last run failed
        self._command = command
        self._identity = identity
        self._number = number
        self._timeout = timeout
        self._wanted = asyncio.Event()

    def before_commit(self) -> None:
        """Blocks on the disk; called where the set is committed."""
        if self._command:
            self._identity.remove(MARK)

    def succeeded(self) -> bool:
        """Whether the set in place has had its run, or needs none. Blocks on the disk."""
        if not self._command:
            return True
        mark = self._identity.read(MARK)
        return mark is not None and mark in (b"", b"%d" % self._number())

    def want(self) -> None:
        self._wanted.set()

    async def serve(self) -> None:
        failures = 0
        while self._command:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_pause(failures)):
                    await self._wanted.wait()
            if self._wanted.is_set():
                failures = 0
            self._wanted.clear()
            problem = await self._run()
            if problem:
                log.error("NSTANCE_ON_RECEIVE failed", extra={"reason": problem})
            self.problem = f"NSTANCE_ON_RECEIVE failed: {problem}" if problem else ""
            failures = failures + 1 if problem else 0
            self.on_change()

    async def _run(self) -> str:
        """Why it failed; empty if it did not."""
        try:
            number = await asyncio.to_thread(self._number)
            if problem := await commands.run(self._command, seconds=self._timeout):
                return problem
            await asyncio.to_thread(self._identity.write, MARK, b"%d" % number)
        except (OSError, Unusable) as error:
            return str(error)
        return ""


def _pause(failures: int) -> float | None:
    """Until the next try; None: there is nothing to try again."""
    return min(RETRY_MOST_SECONDS, RETRY_FIRST_SECONDS * 2.0 ** min(failures - 1, 10)) if failures else None
