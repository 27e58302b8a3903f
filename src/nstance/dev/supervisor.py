"""Looking after children: what they log is shown, one that ends is started again, and all start anew with new code.

The program itself is the child, not somebody who watches files in between: that one would hide its end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import watchfiles

from nstance.clock import Clock
from nstance.dev import child
from nstance.dev.screen import Screen

SOURCES = Path(__file__).resolve().parents[2]
RESTART = 5.0  # seconds after which a child that ended is started again
GRACE = 4.0  # seconds; honcho kills what has not ended after five


class Supervisor:
    def __init__(self, children: Sequence[child.Child], screen: Screen, clock: Clock) -> None:
        self._children = children
        self._screen = screen
        self._clock = clock
        self._changed = False
        self._ended: dict[int, float] = {}  # when each process was found ended

    async def start(self) -> None:
        for each in self._children:
            await each.start()

    async def look(self) -> None:
        """To be called often."""
        for each in self._children:
            for line in each.lines():
                self._screen.quote(each.name, line)
        if self._changed:
            self._changed = False
            self._screen.say(f"the code changed: {', '.join(each.name for each in self._children)} starts anew")
            await self.stop()
            await self.start()
        for each in self._children:
            await self._revive(each)

    async def _revive(self, each: child.Child) -> None:
        if each.code is None:
            return
        now = self._clock.monotonic()
        ended = self._ended.setdefault(each.pid, now)
        if ended == now:
            how = child.describe(each.code)
            self._screen.say(f"{each.name} (pid {each.pid}) ended {how}; it is started again in {RESTART:g} s")
        elif now - ended > RESTART:
            await each.start()
            self._screen.say(f"{each.name} started again (pid {each.pid})")

    async def stop(self) -> None:
        await asyncio.gather(*(each.stop(GRACE) for each in self._children))

    @contextlib.asynccontextmanager
    async def watching(self, sources: Path = SOURCES) -> AsyncIterator[None]:
        """While it lasts, new code is noticed."""
        watching = asyncio.create_task(self._watch(sources))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, sources: Path) -> None:
        try:
            async for _ in watchfiles.awatch(sources, watch_filter=watchfiles.PythonFilter()):
                self._changed = True
        except (OSError, RuntimeError) as problem:
            self._screen.say(f"new code is not noticed: {problem}")
