"""Who did what: the journal read for people and their auditors, and the check of its chain.

A slot holds the checksum of the slot before it. So a slot that was altered, removed or moved no longer fits the one after
it. The trap: a person who can write to the bucket could rewrite all slots from one on, and then the chain fits again. Only
a head that was noted elsewhere shows that; `verify` prints the head and takes an earlier one.
"""

import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nstance.admin import output
from nstance.admin.cluster import journal as reading
from nstance.admin.cluster.journal import DamagedSlot
from nstance.admin.cluster.storage import open_storage
from nstance.admin.options import Target
from nstance.model import actors
from nstance.model.decision import ReasonCode
from nstance.model.ids import ShardId
from nstance.model.instance import Put
from nstance.objects import journal, slots

# Why something failed, in the words of a provider or an agent: nobody asked for that.
_FOREIGN = frozenset(
    {
        ReasonCode.BACK_OFF.value,
        ReasonCode.BLOCKED.value,
        ReasonCode.CREATE_FAILED.value,
        ReasonCode.CREDENTIALS.value,
        ReasonCode.DELETE_FAILED.value,
        ReasonCode.LOAD_BALANCER.value,
        ReasonCode.NOT_READY.value,
        ReasonCode.PROVIDER.value,
        ReasonCode.REFUSED.value,
        ReasonCode.UNREGISTERED.value,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    slot: int
    at: float
    tenant: str
    group: str
    instance: str
    action: str  # the code of the reason
    message: str
    by: Sequence[tuple[str, str]]  # operators, each with the person it acted for

    def record(self, shard: ShardId) -> dict[str, Any]:
        return {
            "time": output.timestamp(self.at),
            "shard": shard,
            "slot": self.slot,
            "tenant": self.tenant,
            "group": self.group or None,
            "instance": self.instance or None,
            "action": self.action,
            "operators": [operator for operator, _ in self.by],
            "persons": [person for _, person in self.by if person],
            "message": self.message,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """What is left out is not filtered by."""

    person: str = ""  # or an operator
    tenant: str = ""
    group: str = ""
    instance: str = ""
    action: str = ""
    since: float = float("-inf")
    until: float = float("inf")
    everything: bool = False  # also what nobody asked for

    def matches(self, entry: AuditEntry) -> bool:
        return (
            (self.everything or bool(entry.by))
            and (not self.person or any(self.person in actor for actor in entry.by))
            and self.tenant in ("", entry.tenant)
            and self.group in ("", entry.group)
            and self.instance in ("", entry.instance)
            and self.action in ("", entry.action)
            and self.since <= entry.at <= self.until
        )


def entries(slot: slots.Slot) -> Iterator[AuditEntry]:
    for entry in slot.entries:
        key = next((change.instance.key for change in entry.changes if isinstance(change, Put)), None)
        for why in entry.reason:
            is_own = why.tenant or key is None
            yield AuditEntry(
                slot=slot.number,
                at=slot.at,
                tenant=why.tenant if is_own or key is None else key.tenant,
                group=why.group if is_own or key is None else key.name,
                instance=why.instance,
                action=why.code,
                message=why.message,
                by=() if why.code in _FOREIGN else actors.named(why.message),
            )


async def read(target: Target, shard: ShardId, wanted: AuditFilter) -> AsyncGenerator[AuditEntry | DamagedSlot, None]:
    async for slot in reading.read(target, shard, start=1, limit=None, follow=False):
        if isinstance(slot, DamagedSlot):
            yield slot
            continue
        for entry in entries(slot):
            if wanted.matches(entry):
                yield entry


async def collect(
    target: Target, shard: ShardId, wanted: AuditFilter, *, limit: int | None = None
) -> tuple[list[dict[str, Any]], list[DamagedSlot]]:
    """The newest `limit` entries as records, and the slots that cannot be read."""
    rows: deque[dict[str, Any]] = deque(maxlen=limit)
    damaged: list[DamagedSlot] = []
    async with contextlib.aclosing(read(target, shard, wanted)) as found:
        async for entry in found:
            if isinstance(entry, DamagedSlot):
                damaged.append(entry)
            else:
                rows.append(entry.record(shard))
    return list(rows), damaged


def problem(slot: DamagedSlot) -> dict[str, Any]:
    return {"slot": slot.number, "message": slot.message}


# ---- the chain


def parse_head(text: str) -> tuple[int, str] | None:
    """A slot and its head, as a record of `Verified` has it; None for another text."""
    match = re.fullmatch(r"([1-9][0-9]{0,18}):([0-9a-f]{64})", text)
    return (int(match[1]), match[2]) if match is not None else None


@dataclass(slots=True)
class Verified:
    first: int | None = None
    last: int | None = None
    linked_from: int | None = None  # the first slot with a link; slots of older versions have none
    head: str = ""
    snapshots: int = 0
    problems: list[DamagedSlot] = field(default_factory=list)

    def add(self, number: int, message: str) -> None:
        self.problems.append(DamagedSlot(number, message))

    def record(self, shard: ShardId) -> dict[str, Any]:
        return {
            "shard": shard,
            "first_slot": self.first,
            "last_slot": self.last,
            "linked_from": self.linked_from,
            "snapshots": self.snapshots,
            "head": f"{self.last}:{self.head}" if self.last is not None else None,
            "problems": [problem(each) for each in self.problems],
        }


async def verify(target: Target, shard: ShardId, *, noted: tuple[int, str] | None) -> Verified:
    """`noted`: a slot and the head that an earlier run showed for it."""
    async with open_storage(target) as place:
        chain = _Chain(await _snapshots(place.journal(shard)), noted)
    async for slot in reading.read(target, shard, start=1, limit=None, follow=False):
        chain.add(slot)
    return chain.finish()


async def _snapshots(reader: journal.Journal) -> dict[int, slots.Snapshot | str]:
    """Each snapshot, or why it cannot be read."""
    found: dict[int, slots.Snapshot | str] = {}
    for number in await reader.numbers(reader.snapshot_prefix):
        try:
            body = await reader.snapshot(number)
            if body is not None:
                found[number] = slots.decode_snapshot(number, body)
        except slots.DamagedError as damage:
            found[number] = str(damage)
    return found


class _Chain:
    """Walks the slots in order, and folds them to compare the result with each snapshot."""

    def __init__(self, snapshots: dict[int, slots.Snapshot | str], noted: tuple[int, str] | None) -> None:
        self._snapshots = snapshots
        self._noted = noted
        self._state: journal.JournalState | None = None  # None: unknown, after damage
        self._before: slots.Slot | None = None  # None: missing or damaged
        self._result = Verified()

    def add(self, slot: slots.Slot | DamagedSlot) -> None:
        result = self._result
        if isinstance(slot, DamagedSlot):
            result.problems.append(slot)
            self._state = self._before = None
            return
        if result.first is None:
            self._start(slot)
        elif self._before is not None:
            self._check_link(self._before, slot)
        if slot.previous and result.linked_from is None:
            result.linked_from = slot.number
        self._fold(slot)
        self._check_snapshot(slot)
        if self._noted is not None and self._noted[0] == slot.number and self._noted[1] != slot.checksum:
            result.add(slot.number, f"journal slot {slot.number} is not the one that was noted: it was rewritten")
        result.last, result.head, self._before = slot.number, slot.checksum, slot

    def _start(self, slot: slots.Slot) -> None:
        self._result.first = slot.number
        if slot.number == 1:
            if slot.previous not in ("", slots.FIRST_LINK):
                self._result.add(1, "journal slot 1 follows another slot: earlier slots were removed")
            self._state = journal.JournalState()
            return
        found = [self._snapshots.get(number) for number in (slot.number, slot.number - 1)]
        if not any(isinstance(each, slots.Snapshot) for each in found):
            message = f"journal slots before {slot.number} are missing, and no snapshot says that they were compacted"
            self._result.add(slot.number - 1, message)
        before = found[1]
        if isinstance(before, slots.Snapshot) and slot.previous and before.head not in ("", slot.previous):
            self._result.add(before.number, f"snapshot {before.number} is not what journal slot {slot.number} follows")

    def _check_link(self, before: slots.Slot, slot: slots.Slot) -> None:
        if slot.previous:
            if slot.previous != before.checksum:
                self._result.add(
                    before.number,
                    f"journal slot {before.number} is not the one that slot {slot.number} follows: it was altered, "
                    f"or slot {slot.number} was",
                )
        elif self._result.linked_from is not None:
            self._result.add(
                slot.number,
                f"journal slot {slot.number} has no link to slot {before.number}: it was replaced, or an older server "
                "wrote it",
            )

    def _fold(self, slot: slots.Slot) -> None:
        if self._state is None:
            return
        try:
            self._state.apply(slot, 0)
        except slots.DamagedError as damage:
            self._result.add(slot.number, str(damage))
            self._state = None

    def _check_snapshot(self, slot: slots.Slot) -> None:
        found = self._snapshots.get(slot.number)
        if not isinstance(found, slots.Snapshot):
            return
        self._result.snapshots += 1
        if found.head and found.head != slot.checksum:
            self._result.add(
                slot.number,
                f"journal slot {slot.number} is not the one that snapshot {slot.number} holds: it was altered",
            )
        state = self._state
        if state is not None and not (
            state.instances == found.instances and state.groups == found.groups and state.drainers == found.drainers
        ):
            message = f"snapshot {slot.number} is not the result of the journal slots before it: it was altered"
            self._result.add(slot.number, message)
        # From here on with the snapshot: one altered snapshot is one problem.
        self._state = journal.JournalState(
            dict(found.instances),
            tail=slot.number,
            epoch=slot.epoch,
            groups=dict(found.groups),
            drainers=set(found.drainers),
            head=slot.checksum,
        )

    def finish(self) -> Verified:
        result = self._result
        for number, found in self._snapshots.items():
            if isinstance(found, str):
                result.add(number, found)
            elif result.last is None or number > result.last:
                result.add(number, f"snapshot {number} exists, but journal slot {number} does not")
        if self._noted is not None and (result.last is None or self._noted[0] > result.last):
            result.add(self._noted[0], f"journal slot {self._noted[0]} was noted, but it does not exist any more")
        result.problems.sort(key=lambda each: each.number)
        return result
