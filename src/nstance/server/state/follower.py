"""A standby's copy of the journal, read along so that it can take over after one fence.

It reads at once when a heartbeat names a newer slot, and otherwise seldom.
"""

import asyncio
import logging
from collections.abc import Callable

from nstance.clock import Clock
from nstance.objects import errors, journal, slots
from nstance.tasks import background

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0  # without heartbeats
HEARTBEAT_INTERVAL_SECONDS = 60.0  # with heartbeats, which name newer slots
HEARTBEAT_FRESH_SECONDS = 2.0
FLOOR_SECONDS = 10.0


class Follower:
    def __init__(
        self,
        books: journal.Journal,
        clock: Clock,
        *,
        on_slot: Callable[[slots.Slot], None] = lambda slot: None,
    ) -> None:
        """`on_slot` is called for each slot that is read, for some again when the copy is loaded again."""
        self.damage = ""  # what is wrong with the journal, according to the last read
        self._journal = books
        self._clock = clock
        self._on_slot = on_slot
        self._state: journal.JournalState | None = None
        self._reading = asyncio.Lock()
        self._has_newer = asyncio.Event()
        self._hinted = float("-inf")
        self._read_at = float("-inf")  # on the clock that goes on while the machine is suspended

    @property
    def tail(self) -> int:
        return self._state.tail if self._state is not None else 0

    @property
    def epoch(self) -> int:
        return self._state.epoch if self._state is not None else 0

    def hint(self, tail: int) -> None:
        """A heartbeat named the journal's length."""
        self._hinted = self._clock.monotonic()
        if tail > self.tail:
            self._has_newer.set()

    async def floor(self) -> int:
        """The highest epoch in the journal, 0 if there is none. A recent copy will do, because the fence decides in the end.
        Raises storage errors and DamagedError."""
        async with self._reading:
            is_recent = self._state is not None and self._clock.boot() - self._read_at < FLOOR_SECONDS
        if not is_recent:
            await self.read()
        return self.epoch

    async def read(self, *, leading: Callable[[], bool] = lambda: False) -> None:
        """Read up to the end of the journal, unless this server leads by then. Raises storage errors and DamagedError."""
        async with self._reading:
            if leading():
                return
            try:
                began = self._clock.boot()
                if self._state is None or self._is_old():
                    self._state = await self._load()
                else:
                    await self._journal.follow(self._state, on_slot=self._on_slot)
                self._read_at, self.damage = began, ""
            except slots.DamagedError as damage:
                self._state, self.damage = None, str(damage)
                raise

    async def take(self) -> journal.JournalState:
        """Hand the copy over to a new leader. The next standby time begins with a new one."""
        async with self._reading:
            state, self._state = self._state, None
            return await self._load() if state is None or self._is_old() else state

    async def _load(self) -> journal.JournalState:
        state, alarms = await self._journal.load(on_slot=self._on_slot)
        for alarm in alarms:
            log.error(alarm)
        return state

    def _is_old(self) -> bool:
        """Slots after this copy may have been removed since, and a slot that is missing reads like the journal's end."""
        return self._clock.boot() - self._read_at > self._journal.limits.keep_seconds / 2

    async def run(self, *, leading: Callable[[], bool]) -> None:
        """Read along while another server leads. Until cancelled."""
        while True:
            if not leading():
                try:
                    await self.read(leading=leading)
                except slots.DamagedError as damage:
                    log.error("failed to read the journal: it is damaged", extra={"damage": str(damage)})
                    await self._clock.sleep(INTERVAL_SECONDS)  # no heartbeat repairs it, and each read is a full one
                except (errors.StorageError, TimeoutError) as problem:
                    log.debug("failed to read the journal", extra={"error": str(problem)})
            self._has_newer.clear()
            hinted = self._clock.monotonic() - self._hinted < HEARTBEAT_FRESH_SECONDS
            await background.is_set_within(self._has_newer, HEARTBEAT_INTERVAL_SECONDS if hinted else INTERVAL_SECONDS)
