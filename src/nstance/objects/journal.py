"""The journal: what was decided, one slot after another. The state of a shard is its fold.

A slot is created with put-if-absent at exactly the next number, so the journal is a chain that only one writer at a time
can extend. A new leader's first act is a slot that fences: from then on an older leader's append finds its slot taken
by a higher epoch, and stops. The trap: whoever reads on while he writes must look at the epochs of what he reads; a
higher one than his own means that he is deposed, whatever his lease says.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from nstance import points
from nstance.clock import Clock, Rng
from nstance.model.ids import GroupKey, InstanceId, TenantId
from nstance.model.instance import Instance
from nstance.model.rollout import GroupRecord
from nstance.objects import errors, settle, slots
from nstance.objects.port import Key, ObjectStore

PARALLEL = 64
MAX_SLOT = 1 << 20  # bytes of entries in one slot, unless a single decision is larger
SLOT_LIMIT = 32 << 20  # of what is read or written: a decision about the largest group that there can be
SNAPSHOT_LIMIT = 64 << 20
SNAPSHOT_SLOTS = 500
SNAPSHOT_BYTES = 1 << 20
KEEP_SECONDS = 7 * 86400.0
PIECES_AT_ONCE = 20  # instances of a snapshot that are encoded without a pause, in about half a millisecond
READ_ATTEMPTS = 5
SNAPSHOT_TIMEOUT = 30.0
LIST_TIMEOUT = 60.0
TIMEOUT = 5.0

T = TypeVar("T")


class DeposedError(Exception):
    """Somebody with a higher epoch writes now. Stop leading at once."""


@dataclass(slots=True)
class JournalState:
    """The state after slot `tail`, and what is needed to go on from there."""

    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    tail: int = 0
    epoch: int = 0  # the highest epoch read
    snapshot: int = 0  # the slot of the newest readable snapshot
    since_snapshot: int = 0  # bytes of slots behind it
    groups: dict[GroupKey, GroupRecord] = field(default_factory=dict)
    drainers: set[TenantId] = field(default_factory=set)  # tenants with an operator that drains

    def take(self, slot: slots.Slot, size: int) -> None:
        if slot.number != self.tail + 1:
            raise slots.DamagedError(f"journal slot {slot.number} follows slot {self.tail}")
        if slot.epoch < self.epoch:
            raise slots.DamagedError(f"journal slot {slot.number} has epoch {slot.epoch} after epoch {self.epoch}")
        for entry in slot.entries:
            slots.apply(self.instances, entry.changes)
            slots.apply_groups(self.groups, entry.groups)
            slots.apply_drainers(self.drainers, entry.drainers)
        self.tail = slot.number
        self.epoch = slot.epoch
        self.since_snapshot += size


class Journal:
    """Reading and tailing; `Writer` appends."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        journal_prefix: str,
        snapshot_prefix: str,
        clock: Clock,
        timeout: Callable[[], float] = lambda: TIMEOUT,
    ) -> None:
        """`timeout`: how long to wait for the next answer of the store."""
        self.store = store
        self.clock = clock
        self.timeout = timeout
        self.journal_prefix = journal_prefix
        self.snapshot_prefix = snapshot_prefix

    def slot_key(self, number: int) -> Key:
        return Key(f"{self.journal_prefix}{number:020d}.json")

    def snapshot_key(self, number: int) -> Key:
        return Key(f"{self.snapshot_prefix}{number:020d}.json")

    async def load(self, *, read: Callable[[slots.Slot], None] = lambda slot: None) -> tuple[JournalState, list[str]]:
        """The state from scratch, and what was found damaged on the way but could be done without. `read` is told each
        slot behind the snapshot that was used."""
        book, alarms = JournalState(), []
        numbers = await self.numbers(self.snapshot_prefix)
        for number in reversed(numbers):
            try:
                body = await self.snapshot(number)
                if body is None:
                    continue
                snapshot = slots.decode_snapshot(number, body)
            except slots.DamagedError as damage:
                alarms.append(f"{damage}; an older one is used")
                continue
            book = JournalState(
                dict(snapshot.instances),
                tail=number,
                epoch=snapshot.epoch,
                snapshot=number,
                groups=dict(snapshot.groups),
                drainers=set(snapshot.drainers),
            )
            break
        await self._catch_up(book, read)
        return book, alarms

    async def _catch_up(self, book: JournalState, read: Callable[[slots.Slot], None]) -> None:
        """Read everything that a listing shows, many at a time, then on until a slot is missing."""
        listed = [n for n in await self.numbers(self.journal_prefix, after=self.slot_key(book.tail)) if n > book.tail]
        last = listed[-1] if listed else book.tail
        if last - book.tail > 2 * len(listed) + PARALLEL:
            raise slots.DamagedError(
                f"journal slot {last} is there, but most slots behind slot {book.tail} are missing"
            )
        # A listing may lag behind: what it leaves out in the middle is asked for before it is called missing.
        for start in range(book.tail + 1, last + 1, PARALLEL):
            part = range(start, min(start + PARALLEL, last + 1))
            for number, body in zip(part, await asyncio.gather(*(self._slot(n) for n in part)), strict=True):
                if body is None:
                    raise slots.DamagedError(f"journal slot {number} is missing, but slot {last} is there")
                slot = slots.decode_slot(number, body)
                book.take(slot, len(body))
                read(slot)
        await self.follow(book, read=read)

    async def follow(self, book: JournalState, *, read: Callable[[slots.Slot], None] = lambda slot: None) -> int:
        """Read on from where the book ends; says how many slots there were. `read` is told each of them."""
        count = 0
        while (body := await self._slot(book.tail + 1)) is not None:
            slot = slots.decode_slot(book.tail + 1, body)
            book.take(slot, len(body))
            read(slot)
            count += 1
        return count

    async def read(self, number: int) -> slots.Slot | None:
        body = await self._slot(number)
        return None if body is None else slots.decode_slot(number, body)

    async def _slot(self, number: int) -> bytes | None:
        return await self.fetch(self.slot_key(number), f"journal slot {number}", SLOT_LIMIT)

    async def snapshot(self, number: int) -> bytes | None:
        return await self.fetch(self.snapshot_key(number), f"snapshot {number}", SNAPSHOT_LIMIT)

    async def fetch(self, key: Key, what: str, limit: int) -> bytes | None:
        async def get() -> bytes | None:
            try:
                return (await self.store.get(key, limit=limit)).body
            except errors.NotFoundError:
                return None
            except errors.ObjectTooLargeError as problem:
                raise slots.DamagedError(f"{what} is larger than any that is written: {problem}") from problem

        return await self._insist(get, f"reading {key}", self.timeout)

    async def numbers(self, prefix: str, *, after: str = "") -> list[int]:
        """The numbers of the objects below a prefix, in order."""

        async def collect() -> list[int]:
            names = [k.removeprefix(prefix).removesuffix(".json") async for k in self.store.list(prefix, after=after)]
            return [int(name) for name in names if len(name) == 20 and name.isdecimal()]

        return await self._insist(collect, f"listing {prefix}", lambda: LIST_TIMEOUT)

    async def _insist(self, read: Callable[[], Awaitable[T]], what: str, timeout: Callable[[], float]) -> T:
        """Reads are repeated a few times: an error is never taken for an absence."""
        for attempt in range(READ_ATTEMPTS):
            try:
                async with asyncio.timeout(timeout()):
                    return await read()
            except (errors.UnavailableError, TimeoutError) as problem:
                if attempt == READ_ATTEMPTS - 1:
                    raise errors.UnavailableError(f"{what} failed {READ_ATTEMPTS} times: {problem}") from problem
                await self.clock.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")


Guard = Callable[[], Awaitable[None]]


class Writer:
    """Appends for one term. Decisions wait in a queue while a write is in flight, then share the next slot."""

    def __init__(
        self,
        journal: Journal,
        book: JournalState,
        *,
        epoch: int,
        guard: Guard,
        rng: Rng,
        appended: Callable[[slots.Slot], None] = lambda slot: None,
    ) -> None:
        """`guard` is awaited before each attempt to write: it waits while the term is frozen and raises Deposed when it
        is over. `appended` is told each slot as it became durable."""
        self._journal = journal
        self._book = book
        self._epoch = epoch
        self._guard = guard
        self._rng = rng
        self._appended = appended
        self._waiting: list[tuple[slots.Entry, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._last: asyncio.Future[None] | None = None
        self._closed: BaseException | None = None
        self._compacted = 0  # everything before this snapshot was removed in this term

    @property
    def tail(self) -> int:
        return self._book.tail

    async def fence(self, *, read: Callable[[slots.Slot], None] = lambda slot: None) -> None:
        """The first act of a term. Afterwards the book holds everything that older leaders managed to write; `read` is
        told what was new in it."""
        await points.reach(points.Point.BEFORE_FENCE)
        while True:
            await self._journal.follow(self._book, read=read)
            self._check_epoch(self._book.epoch)
            try:
                await self._append([])
                break
            except settle.OvertakenError as overtaken:
                if overtaken.found is None:
                    raise slots.DamagedError(
                        f"journal slot {self._book.tail + 1} can neither be written nor read"
                    ) from overtaken
                slot = slots.decode_slot(self._book.tail + 1, overtaken.found.body)
                self._check_epoch(slot.epoch, other=True)
        await points.reach(points.Point.AFTER_FENCE)

    def commit(self, entry: slots.Entry) -> asyncio.Future[None]:
        """Queue a decision. The future is done when it is durable, and fails if it never will be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self._closed is not None:
            future.set_exception(self._closed)
            return future
        self._waiting.append((entry, future))
        self._last = future
        self._wake.set()
        return future

    async def settled(self) -> None:
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
        taken: list[tuple[slots.Entry, asyncio.Future[None]]] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    taken = self._take()
                    await points.reach(points.Point.BEFORE_COMMIT)
                    entries = [entry for entry, _ in taken]
                    try:
                        await self._append(entries)
                    except settle.OvertakenError as overtaken:
                        self._deposed_by(overtaken)
                    for _, future in taken:
                        if not future.done():
                            future.set_result(None)
                    taken = []
                    await points.reach(points.Point.AFTER_COMMIT)
        except BaseException as end:
            self._closed = end if isinstance(end, Exception) else DeposedError("this server stopped leading")
            for _, future in taken + self._waiting:
                if not future.done():
                    future.set_exception(self._closed)
            self._waiting.clear()
            raise

    def _take(self) -> list[tuple[slots.Entry, asyncio.Future[None]]]:
        """As many decisions as fit into one slot, at least one."""
        size, count = 0, 0
        for entry, _ in self._waiting:
            size += (
                200
                + 700 * len(entry.changes)
                + 2500 * len(entry.groups)
                + sum(100 + len(why.message) for why in entry.reason)
            )
            if count and size > MAX_SLOT:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _append(self, entries: list[slots.Entry]) -> None:
        number, op = self._book.tail + 1, f"{self._rng.bits(96):024x}"
        at = round(self._journal.clock.wall(), 3)
        body = slots.encode_slot(
            number=number, epoch=self._epoch, op=op, at=at, entries=[slots.encode_entry(e) for e in entries]
        )
        if len(body) > SLOT_LIMIT:
            raise errors.PermissionDeniedError(
                f"journal slot {number} would have {len(body)} bytes, at most {SLOT_LIMIT} can be read"
            )
        await self._guard()
        try:
            await settle.write(
                self._journal.store,
                settle.ConditionalWrite(
                    key=self._journal.slot_key(number), body=body, op=op, seen=None, limit=SLOT_LIMIT
                ),
                timeout=self._journal.timeout,
                retry=self._retry,
            )
        except errors.ObjectTooLargeError as problem:
            raise slots.DamagedError(
                f"journal slot {number} is taken by an object that nobody wrote: {problem}"
            ) from problem
        slot = slots.Slot(number=number, epoch=self._epoch, op=op, at=at, entries=tuple(entries))
        self._book.take(slot, len(body))
        self._appended(slot)

    async def _retry(self, problem: errors.StorageError) -> None:
        await self._journal.clock.sleep(self._rng.uniform(0.02, 0.2))
        await self._guard()

    def _check_epoch(self, epoch: int, *, other: bool = False) -> None:
        if epoch > self._epoch or (other and epoch == self._epoch):
            raise DeposedError(f"the journal holds epoch {epoch}, this term is epoch {self._epoch}")

    def _deposed_by(self, overtaken: settle.OvertakenError) -> None:
        number = self._book.tail + 1
        if overtaken.found is None:
            raise slots.DamagedError(f"journal slot {number} can neither be written nor read") from overtaken
        slot = slots.decode_slot(number, overtaken.found.body)
        # Behind our fence nobody older can write: whoever did is newer, or shares our epoch through a lost lease.
        raise DeposedError(f"journal slot {number} was written by epoch {slot.epoch}, this term is epoch {self._epoch}")

    def snapshot_due(self) -> bool:
        behind = self._book.tail - self._book.snapshot
        return behind >= SNAPSHOT_SLOTS or (behind > 0 and self._book.since_snapshot >= SNAPSHOT_BYTES)

    async def snapshot(self) -> None:
        """Write the whole state, then remove what no reader and no sleeping leader can need."""
        book = self._book
        snapshot = slots.Snapshot(
            number=book.tail,
            epoch=book.epoch,
            at=round(self._journal.clock.steady(), 3),
            instances=dict(book.instances),
            groups=dict(book.groups),
            drainers=frozenset(book.drainers),
        )
        op = f"{self._rng.bits(96):024x}"
        body = await _encoded(snapshot, op=op)
        if len(body) > SNAPSHOT_LIMIT:
            raise errors.PermissionDeniedError(
                f"a snapshot would have {len(body)} bytes, at most {SNAPSHOT_LIMIT} can be read"
            )
        await points.reach(points.Point.BEFORE_SNAPSHOT)
        await self._guard()
        key = self._journal.snapshot_key(snapshot.number)
        await settle.write(
            self._journal.store,
            settle.ConditionalWrite(key=key, body=body, op=op, seen=None, limit=SNAPSHOT_LIMIT),
            timeout=lambda: SNAPSHOT_TIMEOUT,
            retry=self._retry,
        )
        book.snapshot, book.since_snapshot = snapshot.number, 0
        await points.reach(points.Point.AFTER_SNAPSHOT)
        await self._compact()

    async def _compact(self) -> None:
        """Slots go only when they lie before the last two snapshots and are older than seven days: a removed slot is
        free again, and a leader that was frozen for long must not find it so."""
        numbers = await self._journal.numbers(self._journal.snapshot_prefix)
        horizon = 0
        # Oldest first: of a week's snapshots, each with the whole state, only those are read that are old enough.
        for number in numbers[:-1]:
            try:
                body = await self._journal.snapshot(number)
                if body is None:
                    continue
                if slots.claimed_time(number, body) > self._journal.clock.steady() - KEEP_SECONDS:
                    break
                if number > self._compacted:
                    slots.decode_snapshot(number, body)  # what everything before it is removed for must be readable
                horizon = number
            except slots.DamagedError:
                continue
        if horizon <= self._compacted:
            return
        await points.reach(points.Point.BEFORE_COMPACTION)
        # Oldest first, so that a crash in between never leaves a hole in what is kept.
        for number in await self._journal.numbers(self._journal.journal_prefix):
            if number >= horizon:
                break
            await self._guard()
            await self._journal.store.delete(self._journal.slot_key(number))
        for number in numbers:
            if number >= horizon:
                break
            await self._guard()
            await self._journal.store.delete(self._journal.snapshot_key(number))
        self._compacted = horizon


async def _encoded(snapshot: slots.Snapshot, *, op: str) -> bytes:
    """A little at a time: thousands of instances at once would hold up the event loop for a quarter of a second."""
    pieces: list[bytes] = []
    for piece in slots.snapshot_pieces(snapshot, op=op):
        pieces.append(piece)
        if len(pieces) % PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return b"".join(pieces)


def _retrieve(future: asyncio.Future[None]) -> None:
    """Whoever committed may have gone away: the outcome is then nobody's business, not a warning."""
    if not future.cancelled():
        future.exception()
