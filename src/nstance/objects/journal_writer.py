"""Appending to the journal, and removing what is old: one writer, during one term."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from nstance import points
from nstance.clock import Rng
from nstance.objects import errors, settle, slots
from nstance.objects.journal import SNAPSHOT_LIMIT, DeposedError, Journal, JournalState

MAX_SLOT_BYTES = 1 << 20  # of entries in one slot, unless a single decision is larger
SNAPSHOT_BYTES = 1 << 20
PIECES_PER_TURN = 20  # instances of a snapshot that are encoded without a pause, in about 0.5 ms
SNAPSHOT_TIMEOUT_SECONDS = 30.0

Guard = Callable[[], Awaitable[None]]


@dataclass(eq=False)
class Writer:
    """Appends during one term. Decisions that arrive during a write share the next slot."""

    journal: Journal
    state: JournalState
    _: KW_ONLY
    epoch: int
    guard: Guard  # awaited before each write: waits while the term is frozen, raises DeposedError when it is over
    rng: Rng
    on_append: Callable[[slots.Slot], None] = lambda slot: None  # gets each slot when it is durable
    _queue: list[tuple[slots.Entry, asyncio.Future[None]]] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _last: asyncio.Future[None] | None = None
    _closed: BaseException | None = None
    _compacted: int = 0  # everything before this snapshot was removed during this term

    @property
    def tail(self) -> int:
        return self.state.tail

    async def fence(self, *, on_slot: Callable[[slots.Slot], None] = lambda slot: None) -> None:
        """The first act of a term: read what older leaders have written (`on_slot` gets it), then append a slot."""
        await points.reach(points.Point.BEFORE_FENCE)
        is_new = self.state.tail == 0  # then the append itself shows whether there is a slot after all
        while True:
            if not is_new:
                await self.journal.follow(self.state, on_slot=on_slot)
            is_new = False
            self._check_epoch(self.state.epoch)
            try:
                await self._append([])
                break
            except settle.OvertakenError as overtaken:
                self._check_epoch(self._winner(overtaken).epoch, other=True)
        await points.reach(points.Point.AFTER_FENCE)

    def commit(self, entry: slots.Entry) -> asyncio.Future[None]:
        """Queue a decision. The future is done when it is durable, and fails if it never will be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self._closed is not None:
            future.set_exception(self._closed)
            return future
        self._queue.append((entry, future))
        self._last = future
        self._wake.set()
        return future

    async def wait_durable(self) -> None:
        """Wait until everything queued so far is durable."""
        if self._last is not None and not self._last.done():
            await asyncio.shield(self._last)
        elif self._closed is not None:
            raise self._closed

    def barrier(self) -> "asyncio.Future[None] | None":
        """Done when everything queued so far is durable; None if it already is."""
        return self._last if self._last is not None and not self._last.done() else None

    async def run(self) -> None:
        """Write what is queued, until deposed. What is still queued then fails."""
        batch: list[tuple[slots.Entry, asyncio.Future[None]]] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    batch = self._next_batch()
                    await points.reach(points.Point.BEFORE_COMMIT)
                    entries = [entry for entry, _ in batch]
                    try:
                        await self._append(entries)
                    except settle.OvertakenError as overtaken:
                        self._raise_deposed(overtaken)
                    for _, future in batch:
                        if not future.done():
                            future.set_result(None)
                    batch = []
                    await points.reach(points.Point.AFTER_COMMIT)
        except BaseException as end:
            self._closed = end if isinstance(end, Exception) else DeposedError("this server is no longer the leader")
            for _, future in batch + self._queue:
                if not future.done():
                    future.set_exception(self._closed)
            self._queue.clear()
            raise

    def _next_batch(self) -> list[tuple[slots.Entry, asyncio.Future[None]]]:
        """As many queued decisions as fit into one slot, at least one."""
        size, count = 0, 0
        for entry, _ in self._queue:
            size += slots.estimate_size(entry)
            if count and size > MAX_SLOT_BYTES:
                break
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    async def _append(self, entries: Sequence[slots.Entry]) -> None:
        """In one slot if they fit."""
        half = self.journal.limits.slot_bytes // 2
        expected = sum(map(slots.estimate_size, entries))
        if expected > half and await self._append_parts(entries, expected // half + 1):
            return
        number, op = self.state.tail + 1, f"{self.rng.bits(96):024x}"
        at = round(self.journal.clock.wall(), 3)
        previous, encoded = self.state.head, [slots.encode_entry(entry) for entry in entries]
        body, checksum = slots.seal_slot(
            number=number, epoch=self.epoch, op=op, at=at, entries=encoded, previous=previous
        )
        if len(body) > self.journal.limits.slot_bytes:
            if await self._append_parts(entries, len(body) // half + 1):
                return
            raise errors.PermissionDeniedError(
                f"journal slot {number} would have {len(body)} bytes, limit {self.journal.limits.slot_bytes}"
            )
        await self.guard()
        try:
            await settle.write(
                self.journal.store,
                settle.ConditionalWrite(
                    key=self.journal.slot_key(number), body=body, op=op, seen=None, limit=self.journal.limits.slot_bytes
                ),
                timeout=self.journal.timeout,
                retry=self._retry,
            )
        except errors.ObjectTooLargeError as problem:
            raise slots.DamagedError(
                f"journal slot {number} is taken by an object that Nstance did not write: {problem}"
            ) from problem
        slot = slots.Slot(
            number=number,
            epoch=self.epoch,
            op=op,
            at=at,
            entries=tuple(entries),
            previous=previous,
            checksum=checksum,
        )
        self.state.apply(slot, len(body))
        self.on_append(slot)

    async def _append_parts(self, entries: Sequence[slots.Entry], count: int) -> bool:
        """Whether they could be divided."""
        parts = slots.divide(entries, count) if entries else []
        for part in parts if len(parts) > 1 else ():
            await self._append(part)
        return len(parts) > 1

    async def _retry(self, problem: errors.StorageError) -> None:
        await self.journal.clock.sleep(self.rng.uniform(0.02, 0.2))
        await self.guard()

    def _check_epoch(self, epoch: int, *, other: bool = False) -> None:
        if epoch > self.epoch or (other and epoch == self.epoch):
            raise DeposedError(f"the journal holds epoch {epoch}, this term is epoch {self.epoch}")

    def _raise_deposed(self, overtaken: settle.OvertakenError) -> None:
        slot = self._winner(overtaken)
        # After the fence no older leader can write: the writer is newer, or has the same epoch through a lost lease.
        raise DeposedError(f"journal slot {slot.number} has epoch {slot.epoch}, this term is epoch {self.epoch}")

    def _winner(self, overtaken: settle.OvertakenError) -> slots.Slot:
        number = self.state.tail + 1
        if overtaken.found is None:
            raise slots.DamagedError(f"journal slot {number} can neither be written nor read") from overtaken
        return slots.decode_slot(number, overtaken.found.body)

    def is_snapshot_due(self) -> bool:
        behind = self.state.tail - self.state.snapshot
        if self.state.decisions.is_waiting:
            return False  # a reader that starts there would lack the parts before it
        return behind >= self.journal.limits.snapshot_slots or (
            behind > 0 and self.state.since_snapshot >= SNAPSHOT_BYTES
        )

    async def snapshot(self) -> None:
        """Write the whole state, then remove old slots."""
        state = self.state
        snapshot = slots.Snapshot(
            number=state.tail,
            epoch=state.epoch,
            at=round(self.journal.clock.steady(), 3),
            instances=dict(state.instances),
            groups=dict(state.groups),
            drainers=frozenset(state.drainers),
            head=state.head,
        )
        op = f"{self.rng.bits(96):024x}"
        body = await _encode_snapshot(snapshot, op=op)
        if len(body) > SNAPSHOT_LIMIT:
            raise errors.PermissionDeniedError(
                f"the snapshot would have {len(body)} bytes, expected at most {SNAPSHOT_LIMIT}"
            )
        await points.reach(points.Point.BEFORE_SNAPSHOT)
        await self.guard()
        key = self.journal.snapshot_key(snapshot.number)
        await settle.write(
            self.journal.store,
            settle.ConditionalWrite(key=key, body=body, op=op, seen=None, limit=SNAPSHOT_LIMIT),
            timeout=lambda: SNAPSHOT_TIMEOUT_SECONDS,
            retry=self._retry,
        )
        state.snapshot, state.since_snapshot = snapshot.number, 0
        await points.reach(points.Point.AFTER_SNAPSHOT)
        await self._compact()

    async def _compact(self) -> None:
        """Remove slots that lie before the last two snapshots and are older than seven days. A removed slot is free again, and
        a leader that was frozen for long must not find it so."""
        journal = self.journal
        numbers = await journal.numbers(journal.snapshot_prefix)
        horizon = await self._horizon(numbers)
        if horizon <= self._compacted:
            return
        await points.reach(points.Point.BEFORE_COMPACTION)
        slot_numbers = await journal.numbers(journal.journal_prefix)
        # Oldest first, so that a crash never leaves a gap in what remains.
        for key_of, listed in ((journal.slot_key, slot_numbers), (journal.snapshot_key, numbers)):
            for number in listed:
                if number >= horizon:
                    break
                await self.guard()
                await journal.store.delete(key_of(number))
        self._compacted = horizon

    async def _horizon(self, numbers: list[int]) -> int:
        """The newest readable snapshot that is old enough, the last one excepted. Oldest first, so that of a week's snapshots
        only the old ones are read."""
        horizon = 0
        for number in numbers[:-1]:
            try:
                body = await self.journal.snapshot(number)
                if body is None:
                    continue
                if slots.claimed_time(number, body) > self.journal.clock.steady() - self.journal.limits.keep_seconds:
                    break
                if number > self._compacted:
                    slots.decode_snapshot(number, body)  # it must be readable before older slots are removed
                horizon = number
            except slots.DamagedError:
                continue
        return horizon


async def _encode_snapshot(snapshot: slots.Snapshot, *, op: str) -> bytes:
    """With pauses: thousands of instances at once would block the event loop for a quarter of a second."""
    pieces: list[bytes] = []
    for piece in slots.snapshot_pieces(snapshot, op=op):
        pieces.append(piece)
        if len(pieces) % PIECES_PER_TURN == 0:
            await asyncio.sleep(0)
    return b"".join(pieces)


def _retrieve(future: asyncio.Future[None]) -> None:
    """Without this, asyncio warns about a failed commit that nothing awaits any more."""
    if not future.cancelled():
        future.exception()
