"""The command that runs after a set of files was installed.

It runs at least once per set: a marker file holds the number of the set for which it succeeded, so that a crash in
between makes the next start run it. Sets that arrive while it runs cause one more run, not one each. A command that
fails or hangs is logged, reported and retried with growing delays; the files stay, but the instance is not ready.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from nstance.agent import commands
from nstance.agent.files.folder import Folder, SetupError
from nstance.agent.settings import Waits
from nstance.tasks import background

log = logging.getLogger(__name__)

MARKER = "on-receive.done"  # empty: written by an older agent, for the installed set


class OnReceive:
    def __init__(self, command: Sequence[str], identity: Folder, *, number: Callable[[], int], waits: Waits) -> None:
        """`number` returns the number of the installed set; it blocks on the disk."""
        self.on_change: Callable[[], None] = lambda: None  # called after each run
        self.problem = ""  # why the last run failed
        self._command = command
        self._identity = identity
        self._number = number
        self._waits = waits
        self._requested = asyncio.Event()

    def before_commit(self) -> None:
        """Blocks on the disk; called just before a set is committed."""
        if self._command:
            self._identity.remove(MARKER)

    def has_succeeded(self) -> bool:
        """Whether the command has run for the installed set, or there is none. Blocks on the disk."""
        if not self._command:
            return True
        marker = self._identity.read(MARKER)
        return marker is not None and marker in (b"", b"%d" % self._number())

    def request_run(self) -> None:
        self._requested.set()

    async def serve(self) -> None:
        failures = 0
        while self._command:
            wait = self._waits.command_retry.delay(failures) if failures else None
            if await background.is_set_within(self._requested, wait):
                failures = 0
            self._requested.clear()
            problem = await self._run()
            if problem:
                log.error("failed to run NSTANCE_ON_RECEIVE", extra={"reason": problem})
            self.problem = f"NSTANCE_ON_RECEIVE failed: {problem}" if problem else ""
            failures = failures + 1 if problem else 0
            self.on_change()

    async def _run(self) -> str:
        """Returns why it failed; empty on success."""
        try:
            number = await asyncio.to_thread(self._number)
            if problem := await commands.run(self._command, seconds=self._waits.command):
                return problem
            await asyncio.to_thread(self._identity.write, MARKER, b"%d" % number)
        except (OSError, SetupError) as error:
            return str(error)
        return ""
