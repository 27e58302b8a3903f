"""Runs child processes: shows their logs, restarts one that exits, and restarts all when the code changes.

The program itself is the child, without a file watcher in between that would hide its exit.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import watchfiles

from nstance.clock import Clock
from nstance.dev import child
from nstance.dev.screen import Screen
from nstance.tasks import background

SOURCES = Path(__file__).resolve().parents[2]
RESTART_SECONDS = 5.0
GRACE_SECONDS = 4.0  # honcho kills processes after five


class Supervisor:
    def __init__(
        self,
        children: Sequence[child.Child],
        screen: Screen,
        clock: Clock,
        *,
        on_exit: Callable[[child.Child], None] | None = None,
    ) -> None:
        self._children = children
        self._screen = screen
        self._clock = clock
        self._on_exit = on_exit
        self._code_changed = False
        self._exited: dict[int, float] = {}  # process ID: when its exit was noticed

    async def start(self) -> None:
        for each in self._children:
            await each.start()
            self._screen.say(f"{each.name} started (pid {each.pid})")

    async def poll(self) -> None:
        """Call it often."""
        for each in self._children:
            for line in each.new_lines():
                self._screen.quote(each.name, line)
        if self._code_changed:
            self._code_changed = False
            self._screen.say(f"code changed: restarting {', '.join(each.name for each in self._children)}")
            await self.stop()
            await self.start()
        for each in self._children:
            await self._restart_if_exited(each)

    async def _restart_if_exited(self, each: child.Child) -> None:
        if each.exit_code is None:
            return
        now = self._clock.monotonic()
        exited = self._exited.setdefault(each.pid, now)
        if exited == now:
            if self._on_exit is not None:
                self._on_exit(each)
            how = child.describe_exit(each.exit_code)
            self._screen.say(f"{each.name} (pid {each.pid}) {how}; it restarts in {RESTART_SECONDS:g} s")
        elif now - exited > RESTART_SECONDS:
            await each.start()
            self._screen.say(f"{each.name} restarted (pid {each.pid})")

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        await asyncio.gather(*(each.stop(grace) for each in self._children))

    @contextlib.asynccontextmanager
    async def reloading(self, sources: Path = SOURCES) -> AsyncIterator[None]:
        """Restarts the children when the code changes, while the block lasts."""
        async with background.running([self._watch(sources)]):
            yield

    async def _watch(self, sources: Path) -> None:
        try:
            async for _ in watchfiles.awatch(sources, watch_filter=watchfiles.PythonFilter()):
                self._code_changed = True
        except (OSError, RuntimeError) as problem:
            self._screen.say(f"failed to watch the code for changes: {problem}")
