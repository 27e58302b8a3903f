"""One leadership, from an acquired lease to its end.

Everything that acts gets the term and asks it before each act. A term may be frozen for a while (the lease was not renewed
in time) and lead again; once ended it never leads again.
"""

import asyncio
from collections.abc import Awaitable, Callable

from nstance.clock import Clock
from nstance.objects.journal import DeposedError


class Term:
    def __init__(
        self, epoch: int, clock: Clock, *, reread: Callable[[], Awaitable[bool]], clock_warning: str = ""
    ) -> None:
        """`reread`: whether the lease in storage is still ours. `clock_warning`: what is wrong with the machine's clock."""
        self.epoch = epoch
        self.clock_warning = clock_warning
        self.ended = asyncio.Event()
        self.closing = asyncio.Event()  # an orderly stop: finish what is in flight, then return
        self.why = ""
        self._clock = clock
        self._reread = reread
        self._until = float("-inf")
        self._suspicion_after = 0.0
        self._offsets = self.offsets()
        self._changed = asyncio.Event()

    def confirm(self, until: float, *, length: float) -> None:
        """A renewal, or the promises of the members, allow work until then."""
        self._until = until
        self._suspicion_after = length
        self._changed.set()

    def offsets(self) -> tuple[float, float]:
        """How far the clocks that may jump are from the monotonic one."""
        monotonic = self._clock.monotonic()
        return self._clock.boot() - monotonic, self._clock.wall() - monotonic

    def rebase(self, offsets: tuple[float, float]) -> None:
        """Storage confirmed the lease after the clocks had these offsets."""
        self._offsets = offsets

    def revoke(self) -> None:
        """Stop acting until the next confirmation. Safe to call from another thread."""
        self._until = float("-inf")

    def end(self, why: str) -> None:
        if not self.ended.is_set():
            self.why = why
            self.ended.set()
            self._changed.set()

    def leading(self) -> bool:
        """Whether work may start now."""
        return not self.ended.is_set() and self._clock.monotonic() < self._until

    async def ready(self) -> None:
        """Wait until work may start. Raises Deposed when it never may again."""
        while True:
            if self.ended.is_set():
                raise DeposedError(self.why)
            if self.leading():
                if not self._clock_jumped():
                    return
                # The machine was suspended or its clock was set: the monotonic clock proves nothing then.
                offsets = self.offsets()
                if not await self._reread():
                    self.end("the lease was taken while this machine was suspended")
                    continue
                self.rebase(offsets)
                continue
            self._changed.clear()
            await self._changed.wait()

    def _clock_jumped(self) -> bool:
        return any(
            abs(now - then) > self._suspicion_after for now, then in zip(self.offsets(), self._offsets, strict=True)
        )
