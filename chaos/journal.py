"""Replays the journal slot by slot and compares it with what was done to the shard.

The invariants are those of the simulator's auditor: I1 no leaked VM, I2 no duplicate VM, I3 no deletion without a committed
tombstone, I5 one writer, I6 what was acknowledged survives, I7 one key, I10 in doubt nothing is deleted. What the simulator
knows from inside is observed here from outside: VMs by their directories, deletions by the provider's marks, harm by the
notes of this run. All clocks are this machine's.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaos.world import DEAD_AFTER, SHARD, SUSPECT_AFTER, Harm, World
from nstance.clock import SystemClock
from nstance.config import storage_keys
from nstance.model.consistency import violations
from nstance.model.ids import InstanceId
from nstance.model.instance import CAPACITY, TRANSITIONS, Cause, Instance, Put, Remove, State
from nstance.objects import journal, slots
from nstance.objects.port import Key

LEAVING = frozenset({State.DRAINING, State.DELETING})
CLOCK_ERROR_SECONDS = 0.5  # between the time of a file and a server's slewed clock
RECONNECT_SECONDS = 20.0  # within which a healthy agent connects again on a busy machine
TOLERANCE_SECONDS = 6.5  # a server counts from an agent's last byte, and asks for one every 5 s
IN_FLIGHT_SECONDS = 12.0  # that a call to the provider may take
# The log message of a new leader; the second one is that of older servers.
REGISTRATION_RETRY_SECONDS = 45.0  # the longest back-off of an agent's registration, and half as much
LEADERSHIP_MESSAGES = ("leadership acquired", "this server leads")


@dataclass
class Replay:
    """The records after all slots, and the problems found on the way."""

    world: World
    records: dict[InstanceId, Instance] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    decisions: slots.Assembler = field(default_factory=slots.Assembler)
    causes: Counter[str] = field(default_factory=Counter)
    tail: int = 0
    intents: dict[InstanceId, float] = field(default_factory=dict)  # when each was stored
    tombstones: dict[InstanceId, float] = field(default_factory=dict)
    fences: list[tuple[float, int]] = field(default_factory=list)  # when each epoch began
    left: dict[InstanceId, tuple[float, str]] = field(default_factory=dict)

    async def run(self) -> None:
        store = self.world.store()
        prefix = storage_keys.journal_prefix(SHARD)
        try:
            keys = [key async for key in store.list(prefix)]
            for key in sorted(keys):
                number = int(key[len(prefix) : -len(".json")])
                try:
                    self._check_slot(slots.decode_slot(number, (await store.get(Key(key))).body))
                except slots.DamagedError as damage:
                    self._report("I6", str(damage))
        finally:
            await store.close()
        try:
            if await read_records(self.world) != self.records:
                self._report("I6", "reading the journal from a snapshot gives other records")
        except slots.DamagedError as damage:
            self._report("I6", f"failed to read the journal again: {damage}")
        self._check_vms()

    # ---- slots

    def _check_slot(self, slot: slots.Slot) -> None:
        if slot.number != self.tail + 1:
            self._report("I5", f"slot {slot.number} follows slot {self.tail}")
        if self.fences and slot.epoch < self.fences[-1][1]:
            self._report("I5", f"slot {slot.number} has epoch {slot.epoch} after {self.fences[-1][1]}")
        if not self.fences or slot.epoch > self.fences[-1][1]:
            self.fences.append((slot.at, slot.epoch))
        self.tail = slot.number
        for entry in self.decisions.add(slot):
            before = dict(self.records)
            slots.apply(self.records, entry.changes)
            for change in entry.changes:
                self._check_change(slot.at, before, change)
        for problem in violations(self.records):
            self._report("I6", f"slot {slot.number} leaves an inconsistent record: {problem}")

    def _check_change(self, at: float, before: dict[InstanceId, Instance], change: Put | Remove) -> None:
        if isinstance(change, Remove):
            gone = before.get(change.id)
            if gone is not None and gone.ended is None:
                self._report("I6", f"the record of {change.id} was removed in state {gone.state.value}")
            return
        new = change.instance
        old = before.get(new.id)
        if new.state is State.DELETING:
            self.tombstones.setdefault(new.id, at)
        if old is None:
            self._check_new(at, new)
            return
        if new.state is not old.state and not _reachable(old.state, new.state):
            self._report("I6", f"{new.id} changed from {old.state.value} to {new.state.value}")
        if old.public_key and new.public_key != old.public_key:
            self._report("I7", f"{new.id} has another key")
        if old.state in CAPACITY and new.state in LEAVING:
            self._check_departure(at, old, new)

    def _check_new(self, at: float, new: Instance) -> None:
        if new.id in self.intents:
            self._report("I2", f"the ID {new.id} was used again")
        self.intents[new.id] = at
        if new.state is State.DELETING:
            self._report("I10", f"{new.id} was considered an orphan ({new.cause})")
            return
        members = [m for m in self.records.values() if m.key == new.key and m.counts]
        known = {m.id for m in members}
        places, size = sum(m.replaces not in known for m in members), self.world.sizes[new.group]
        if places > size:
            self._report("I2", f"{new.key} has {places} places filled of {size}: {new.id} is one too many")
        if new.replaces is not None:
            rivals = [m.id for m in members if m.replaces == new.replaces]
            if len(rivals) > 1:
                self._report("I2", f"{new.replaces} is replaced by {rivals}")
            if new.replaces_for is Cause.UNHEALTHY:
                self._check_unresponsive(at, new.replaces, SUSPECT_AFTER, "got a replacement")

    # ---- departures

    def _check_departure(self, at: float, old: Instance, new: Instance) -> None:
        cause = new.cause or (new.drain.cause if new.drain is not None else None)
        word = cause.value if cause is not None else "no cause"
        self.causes[word] += 1
        self.left[new.id] = at, word
        harm = self.world.harm.get(new.id, [])
        match cause:
            case Cause.GONE:
                if not any(h.kind == "killed" and h.began <= at + CLOCK_ERROR_SECONDS for h in harm):
                    self._report("I10", f"{new.id} was considered gone, but was not killed")
            case Cause.UNHEALTHY:
                self._check_unresponsive(at, new.id, DEAD_AFTER, "was given up")
                if not any(m.replaces == new.id and m.state is not State.PENDING for m in self.records.values()):
                    self._report("I10", f"{new.id} is unresponsive and leaves before its replacement was created")
            case Cause.SUPERSEDED:
                if old.replaces is None:
                    self._report("I10", f"{new.id} was superseded, but did not replace any instance")
            case _:
                self._report("I10", f"{new.id} left for {word}, which no fault explains")

    def _check_unresponsive(self, at: float, id: InstanceId, least: float, action: str) -> None:
        """It must have been unreachable for so long, and the leader must have listened for so long."""
        record = self.records.get(id)
        if record is not None and record.registered is not None and at - record.registered < REGISTRATION_RETRY_SECONDS:
            return  # its leader may have died before it answered: the agent then registers again after its back-off
        fences = [began for began, _ in self.fences]
        away = unreachable_for([*self.world.harm.get(id, []), *self.world.cuts], fences, at)
        if away < least - TOLERANCE_SECONDS:
            self._report("I10", f"{id} {action} as unhealthy, but was unreachable for only {away:.1f} s")
        led = at - max(fences)
        if led < least - CLOCK_ERROR_SECONDS:
            self._report("I10", f"{id} {action} as unhealthy by a leader that had listened for only {led:.1f} s")

    # ---- VMs

    def _check_vms(self) -> None:
        """I1, I3, I5: each VM was created by a leader after its intent; each deletion began after its tombstone."""
        leaders = dict(_read_leaders(self.world))  # epoch → incarnation
        for id, seen in self.world.vms.seen.items():
            intent = self.intents.get(InstanceId(id))
            if intent is None:
                self._report("I1", f"a VM for {id} was created without an intent in the journal")
            elif seen.made < intent - CLOCK_ERROR_SECONDS:
                self._report(
                    "I1", f"the VM of {id} was created {intent - seen.made:.2f} s before its intent was stored"
                )
            self._check_maker(id, seen.maker, seen.made, leaders)
        for id, at in self.world.vms.deletions().items():
            tombstone = self.tombstones.get(InstanceId(id))
            if tombstone is None:
                self._report("I3", f"the deletion of {id} has no committed tombstone")
            elif at < tombstone - CLOCK_ERROR_SECONDS:
                self._report("I3", f"{id} was deleted {tombstone - at:.2f} s before its tombstone was stored")

    def _check_maker(self, id: str, maker: str, made: float, leaders: dict[int, str]) -> None:
        led = [epoch for epoch, name in leaders.items() if name == maker]
        if not led:
            self._report("I5", f"the VM of {id} was created by {maker}, which never led")
            return
        current = max((epoch for at, epoch in self.fences if at <= made - CLOCK_ERROR_SECONDS), default=0)
        if current in led or max(led) > current:
            return
        over = min(at for at, epoch in self.fences if epoch > max(led))
        stops = next(life.stops for c in self.world.servers.values() for life in c.lives if life.name == maker)
        slept = max((end for begin, end in stops if begin <= made), default=0.0)
        if made > max(over, slept) + IN_FLIGHT_SECONDS:
            self._report("I5", f"{maker} created the VM of {id} {made - over:.1f} s after its epoch was over")

    def _report(self, invariant: str, text: str) -> None:
        self.problems.append(f"{invariant}: {text}")


async def read_records(world: World) -> Mapping[InstanceId, Instance]:
    """The records as a new leader would read them."""
    store = world.store()
    try:
        reader = journal.Journal(
            store,
            journal_prefix=storage_keys.journal_prefix(SHARD),
            snapshot_prefix=storage_keys.snapshot_prefix(SHARD),
            clock=SystemClock(),
        )
        state, _ = await reader.load()
        return state.instances
    finally:
        await store.close()


def unreachable_for(harm: list[Harm], fences: list[float], at: float) -> float:
    """For how long an agent may have been unreachable at that time.

    It needs a moment to connect after it was cut off and after each change of leaders; faults within that moment count as
    one. A change of leaders, which concerns all agents, explains nothing by itself."""
    faults = sorted([(each.began, each.ended) for each in harm] + [(fence, fence) for fence in fences])
    is_own, began, ended = False, at, float("-inf")
    for first, last in faults:
        if first > at:
            break
        if first > ended + RECONNECT_SECONDS:
            is_own, began = False, first
        is_own |= last > first
        ended = max(ended, last)
    return at - began if is_own and at <= ended + RECONNECT_SECONDS else 0.0


def _reachable(old: State, new: State) -> bool:
    """In one step, or in several steps of one decision."""
    reached, queue = {old}, [old]
    while queue:
        for following in TRANSITIONS[queue.pop()] - reached:
            reached.add(following)
            queue.append(following)
    return new in reached


def _read_leaders(world: World) -> Iterator[tuple[int, str]]:
    """Epochs and incarnations of leaders, by their own logs."""
    for child in world.servers.values():
        for life in child.lives:
            for record in records(life.log.read_text(errors="replace")):
                if record.get("message") in LEADERSHIP_MESSAGES:
                    yield int(record["epoch"]), life.name


def records(text: str) -> Iterator[dict[str, Any]]:
    """Log records; a line that is not JSON becomes a record without a level."""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        yield found if isinstance(found, dict) else {"message": line}
