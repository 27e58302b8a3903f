"""The journal: decisions, one slot after another. The state of a shard is the fold of its slots.

A slot is created with put-if-absent at exactly the next number, so only one writer at a time can extend the journal. A
new leader's first act is a slot that fences: from then on an older leader's append finds its slot taken by a higher
epoch, and stops. The trap: a writer that reads must check the epochs of what it reads; an epoch above its own means that
it is deposed, whatever its lease says.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

from nstance.clock import Clock
from nstance.model.ids import GroupKey, InstanceId, TenantId
from nstance.model.instance import Instance
from nstance.model.rollout import GroupRecord
from nstance.objects import errors, slots
from nstance.objects.port import Key, ObjectStore
from nstance.tasks.backoff import Backoff, retry

PARALLEL_READS = 64
SNAPSHOT_LIMIT = 64 << 20
READ_ATTEMPTS = 5
READ_RETRY = Backoff(0.05, 1.0)
LIST_TIMEOUT_SECONDS = 60.0
TIMEOUT_SECONDS = 5.0

T = TypeVar("T")


class DeposedError(Exception):
    """A leader with a higher epoch writes now. Stop leading at once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the journal becomes."""

    slot_bytes: int = 8 << 20  # a larger decision (one that drains a group of 10,000 has 14 MB) is written in parts
    snapshot_slots: int = 500  # after so many, a snapshot is due
    keep_seconds: float = 7 * 86400.0  # nothing younger is removed


LIMITS = Limits()


@dataclass(slots=True)
class JournalState:
    """The state after slot `tail`, and what is needed to continue."""

    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    tail: int = 0
    epoch: int = 0  # the highest epoch read
    snapshot: int = 0  # the slot of the newest readable snapshot
    since_snapshot: int = 0  # bytes of slots after it
    groups: dict[GroupKey, GroupRecord] = field(default_factory=dict)
    drainers: set[TenantId] = field(default_factory=set)  # tenants with a drainer
    head: str = slots.FIRST_LINK  # the checksum of slot `tail`; empty if that is not known
    decisions: slots.Assembler = field(default_factory=slots.Assembler, compare=False)

    def apply(self, slot: slots.Slot, size: int) -> None:
        if slot.number != self.tail + 1:
            raise slots.DamagedError(f"journal slot {slot.number} follows slot {self.tail}")
        if slot.epoch < self.epoch:
            raise slots.DamagedError(f"journal slot {slot.number} has epoch {slot.epoch} after epoch {self.epoch}")
        for entry in self.decisions.add(slot):
            slots.apply(self.instances, entry.changes)
            slots.apply_groups(self.groups, entry.groups)
            slots.apply_drainers(self.drainers, entry.drainers)
        self.tail = slot.number
        self.head = slot.checksum
        self.epoch = slot.epoch
        self.since_snapshot += size


@dataclass(eq=False)
class Journal:
    """Reading and following the journal; `journal_writer.Writer` appends."""

    store: ObjectStore
    _: KW_ONLY
    journal_prefix: str
    snapshot_prefix: str
    clock: Clock
    timeout: Callable[[], float] = lambda: TIMEOUT_SECONDS  # for the store's next answer
    limits: Limits = LIMITS

    def slot_key(self, number: int) -> Key:
        return Key(f"{self.journal_prefix}{number:020d}.json")

    def snapshot_key(self, number: int) -> Key:
        return Key(f"{self.snapshot_prefix}{number:020d}.json")

    async def load(
        self, *, on_slot: Callable[[slots.Slot], None] = lambda slot: None
    ) -> tuple[JournalState, list[str]]:
        """The state, and alarms about damaged snapshots. `on_slot` gets each slot after the snapshot that was used."""
        state = JournalState()
        alarms: list[str] = []
        # All that a new shard needs is asked at once, because on slow storage each wait counts.
        numbers, has_slots, first = await asyncio.gather(
            self.numbers(self.snapshot_prefix), self._has_slots(), self._slot(1)
        )
        if not numbers and not has_slots and first is None:
            return state, alarms
        for number in reversed(numbers):
            try:
                body = await self.snapshot(number)
                if body is None:
                    continue
                snapshot = slots.decode_snapshot(number, body)
            except slots.DamagedError as damage:
                alarms.append(f"{damage}; using an older one")
                continue
            state = JournalState(
                dict(snapshot.instances),
                tail=number,
                epoch=snapshot.epoch,
                snapshot=number,
                groups=dict(snapshot.groups),
                drainers=set(snapshot.drainers),
                head=snapshot.head,
            )
            break
        await self._catch_up(state, on_slot)
        return state, alarms

    async def _catch_up(self, state: JournalState, on_slot: Callable[[slots.Slot], None]) -> None:
        """Read all listed slots, many at a time, then continue until a slot is missing."""
        listed = [n for n in await self.numbers(self.journal_prefix, after=self.slot_key(state.tail)) if n > state.tail]
        last = listed[-1] if listed else state.tail
        if last - state.tail > 2 * len(listed) + PARALLEL_READS:
            raise slots.DamagedError(f"journal slot {last} exists, but most slots after slot {state.tail} are missing")
        # A listing may lag: a slot that it omits is read before it counts as missing.
        for start in range(state.tail + 1, last + 1, PARALLEL_READS):
            part = range(start, min(start + PARALLEL_READS, last + 1))
            for number, body in zip(part, await asyncio.gather(*(self._slot(n) for n in part)), strict=True):
                if body is None:
                    raise slots.DamagedError(f"journal slot {number} is missing, but slot {last} exists")
                slot = slots.decode_slot(number, body)
                state.apply(slot, len(body))
                on_slot(slot)
        await self.follow(state, on_slot=on_slot)

    async def follow(self, state: JournalState, *, on_slot: Callable[[slots.Slot], None] = lambda slot: None) -> int:
        """Read the slots after the state's tail. Returns their number; `on_slot` gets each of them."""
        count = 0
        while (body := await self._slot(state.tail + 1)) is not None:
            slot = slots.decode_slot(state.tail + 1, body)
            state.apply(slot, len(body))
            on_slot(slot)
            count += 1
        return count

    async def read(self, number: int) -> slots.Slot | None:
        body = await self._slot(number)
        return None if body is None else slots.decode_slot(number, body)

    async def _slot(self, number: int) -> bytes | None:
        return await self.fetch(self.slot_key(number), f"journal slot {number}", self.limits.slot_bytes)

    async def snapshot(self, number: int) -> bytes | None:
        return await self.fetch(self.snapshot_key(number), f"snapshot {number}", SNAPSHOT_LIMIT)

    async def fetch(self, key: Key, what: str, limit: int) -> bytes | None:
        async def get() -> bytes | None:
            try:
                return (await self.store.get(key, limit=limit)).body
            except errors.NotFoundError:
                return None
            except errors.ObjectTooLargeError as problem:
                raise slots.DamagedError(f"{what} is larger than any that Nstance writes: {problem}") from problem

        return await self._read_with_retries(get, f"reading {key}", self.timeout)

    async def _has_slots(self) -> bool:
        """Whether the listing shows any slot."""

        async def look() -> bool:
            listing = self.store.list(self.journal_prefix)
            try:
                return await anext(listing, None) is not None
            finally:
                if isinstance(listing, AsyncGenerator):
                    await listing.aclose()

        return await self._read_with_retries(look, f"listing {self.journal_prefix}", lambda: LIST_TIMEOUT_SECONDS)

    async def numbers(self, prefix: str, *, after: str = "") -> list[int]:
        """The numbers of the objects below a prefix, in order."""

        async def collect() -> list[int]:
            names = [k.removeprefix(prefix).removesuffix(".json") async for k in self.store.list(prefix, after=after)]
            return [int(name) for name in names if len(name) == 20 and name.isdecimal()]

        return await self._read_with_retries(collect, f"listing {prefix}", lambda: LIST_TIMEOUT_SECONDS)

    async def _read_with_retries(self, read: Callable[[], Awaitable[T]], what: str, timeout: Callable[[], float]) -> T:
        """Reads are repeated a few times: an error is never read as an absence."""

        async def attempt() -> T:
            async with asyncio.timeout(timeout()):
                return await read()

        def on_failure(problem: Exception, failures: int) -> float:
            if failures == READ_ATTEMPTS:
                raise errors.UnavailableError(f"{what} failed {READ_ATTEMPTS} times: {problem}") from problem
            return READ_RETRY.delay(failures)

        expected = (errors.UnavailableError, TimeoutError)
        return await retry(attempt, clock=self.clock, expected=expected, on_failure=on_failure)
