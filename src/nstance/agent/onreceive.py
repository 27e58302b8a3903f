"""The command that is run after a set of files is in place.

At least once per set: the mark that it has run is taken away before a set is committed and put back when the command
has ended, so a crash in between makes the next start run it. Sets that arrive while it runs are answered by one more
run, not by one each. A command that fails or hangs is logged; the files stay.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence

from nstance.agent.folder import Folder

log = logging.getLogger(__name__)

TIMEOUT = 60.0
MARK = "on-receive.done"


class OnReceive:
    def __init__(self, command: Sequence[str], identity: Folder, *, timeout: float = TIMEOUT) -> None:
        self._command = command
        self._identity = identity
        self._timeout = timeout
        self._wanted = asyncio.Event()

    def before_commit(self) -> None:
        """Blocks on the disk; called where the set is committed."""
        if self._command:
            self._identity.remove(MARK)

    def missed(self) -> bool:
        """Whether the set in place has not had its run. Blocks on the disk."""
        return bool(self._command) and self._identity.read(MARK) is None

    def want(self) -> None:
        self._wanted.set()

    async def serve(self) -> None:
        while self._command:
            await self._wanted.wait()
            self._wanted.clear()
            await self._run()
            if not self._wanted.is_set():
                with contextlib.suppress(OSError):  # then it runs once more after the next start
                    await asyncio.to_thread(self._identity.write, MARK, b"")

    async def _run(self) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            log.error("cannot run NSTANCE_ON_RECEIVE", extra={"reason": error})
            return
        try:
            async with asyncio.timeout(self._timeout):
                code = await process.wait()
            if code != 0:
                log.error("NSTANCE_ON_RECEIVE failed", extra={"exit_code": code})
        except TimeoutError:
            log.error("NSTANCE_ON_RECEIVE did not end in time and is killed", extra={"seconds": self._timeout})
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
