"""A standby's copy of the state: it reads the journal along, so that taking over is one fence away.

It reads at once when a heartbeat names a newer slot; otherwise seldom, because a heartbeat would have said so.
"""

import asyncio
import logging
from collections.abc import Callable

from nstance.clock import Clock
from nstance.objects import compaction, errors, journal, slots

log = logging.getLogger(__name__)

EVERY = 5.0  # without heartbeats
EVERY_WITH_HEARTBEATS = 60.0
FRESH = 2.0


class Follower:
    def __init__(
        self,
        books: journal.Journal,
        clock: Clock,
        *,
        leading: Callable[[], bool],
        told: Callable[[slots.Slot], None] = lambda slot: None,
    ) -> None:
        """`told` hears of each slot that is read; of some again, when the copy is made anew."""
        self._books = books
        self._clock = clock
        self._leading = leading
        self._told = told
        self.damage = ""  # what is wrong with the journal, as far as the last look went
        self._book: journal.JournalState | None = None
        self._reading = asyncio.Lock()
        self._news = asyncio.Event()
        self._hinted = float("-inf")
        self._read_at = float("-inf")  # on the clock that goes on while the machine is suspended

    @property
    def tail(self) -> int:
        return self._book.tail if self._book is not None else 0

    @property
    def epoch(self) -> int:
        return self._book.epoch if self._book is not None else 0

    def hint(self, tail: int) -> None:
        """A heartbeat named the journal's length."""
        self._hinted = self._clock.monotonic()
        if tail > self.tail:
            self._news.set()

    async def read(self) -> None:
        """Up to the end of the journal. Raises storage errors and slots.Damaged."""
        async with self._reading:
            if self._leading():
                return
            try:
                began = self._clock.boot()
                if self._book is None or self._is_old():
                    self._book, alarms = await self._books.load(on_slot=self._told)
                    for alarm in alarms:
                        log.error(alarm)
                else:
                    await self._books.follow(self._book, on_slot=self._told)
                self._read_at, self.damage = began, ""
            except slots.DamagedError as damage:
                self._book, self.damage = None, str(damage)
                raise

    async def take(self) -> journal.JournalState:
        """Hand the copy over to a new leader; the next standby time begins with a fresh one."""
        async with self._reading:
            book, self._book = self._book, None
            if book is None or self._is_old():
                book, alarms = await self._books.load(on_slot=self._told)
                for alarm in alarms:
                    log.error(alarm)
            return book

    def _is_old(self) -> bool:
        """Slots behind this copy may have been removed since, and a slot that is missing reads like the journal's end."""
        return self._clock.boot() - self._read_at > compaction.KEEP_SECONDS / 2

    async def run(self) -> None:
        while True:
            if not self._leading():
                try:
                    await self.read()
                except slots.DamagedError as damage:
                    log.error("the journal is damaged, nobody can lead with it", extra={"damage": str(damage)})
                    await self._clock.sleep(EVERY)  # no heartbeat mends it, and each look reads all of it
                except (errors.StorageError, TimeoutError) as problem:
                    log.debug("could not read along", extra={"error": str(problem)})
            self._news.clear()
            last_seen = self._clock.monotonic() - self._hinted < FRESH
            try:
                async with asyncio.timeout(EVERY_WITH_HEARTBEATS if last_seen else EVERY):
                    await self._news.wait()
            except TimeoutError:
                continue
