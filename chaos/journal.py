"""The journal as it lies in the bucket, replayed slot by slot and compared with what was done to the shard.

The same invariants as the simulator's auditor has, by the same marks: I1 no leaked VM, I2 no doubled VM, I3 no deletion
without a committed tombstone, I5 one writer, I6 what was acknowledged survives, I7 one key, I10 in doubt nothing is
deleted. What the simulator knows from inside its world is known here from the outside: VMs by their directories,
deletions by the provider's marks, harm by this run's own notes. All clocks are this machine's.
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
CLOCK_ERROR = 0.5  # between a file's time and a server's slewed clock
FINDS_ITS_WAY = 20.0  # seconds in which an agent that is well again comes back, on a busy machine
ALLOWANCE = 6.5  # seconds: a server counts from an agent's last byte, and asks for one every 5 s
IN_FLIGHT = 12.0  # seconds that a call to the provider may take


@dataclass
class Replay:
    """The fold, and what was wrong on the way."""

    world: World
    fold: dict[InstanceId, Instance] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
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
                    self._slot(slots.decode_slot(number, (await store.get(Key(key))).body))
                except slots.DamagedError as damage:
                    self._wrong("I6", str(damage))
        finally:
            await store.close()
        try:
            if await fold(self.world) != self.fold:
                self._wrong("I6", "a new reader of the journal, beginning with a snapshot, finds something else")
        except slots.DamagedError as damage:
            self._wrong("I6", f"a new reader of the journal finds it damaged: {damage}")
        self._vms()

    # ---- slots

    def _slot(self, slot: slots.Slot) -> None:
        if slot.number != self.tail + 1:
            self._wrong("I5", f"slot {slot.number} follows slot {self.tail}")
        if self.fences and slot.epoch < self.fences[-1][1]:
            self._wrong("I5", f"slot {slot.number} has epoch {slot.epoch} after {self.fences[-1][1]}")
        if not self.fences or slot.epoch > self.fences[-1][1]:
            self.fences.append((slot.at, slot.epoch))
        self.tail = slot.number
        for entry in slot.entries:
            before = dict(self.fold)
            slots.apply(self.fold, entry.changes)
            for change in entry.changes:
                self._changed(slot.at, before, change)
        for problem in violations(self.fold):
            self._wrong("I6", f"slot {slot.number} leaves an inconsistent record: {problem}")

    def _changed(self, at: float, before: dict[InstanceId, Instance], change: Put | Remove) -> None:
        if isinstance(change, Remove):
            gone = before.get(change.id)
            if gone is not None and gone.ended is None:
                self._wrong("I6", f"the record of {change.id} was removed while it was {gone.state.value}")
            return
        new = change.instance
        old = before.get(new.id)
        if new.state is State.DELETING:
            self.tombstones.setdefault(new.id, at)
        if old is None:
            self._appeared(at, new)
            return
        if new.state is not old.state and not _reachable(old.state, new.state):
            self._wrong("I6", f"{new.id} went from {old.state.value} to {new.state.value}")
        if old.public_key and new.public_key != old.public_key:
            self._wrong("I7", f"{new.id} was given another key")
        if old.state in CAPACITY and new.state in LEAVING:
            self._left(at, old, new)

    def _appeared(self, at: float, new: Instance) -> None:
        if new.id in self.intents:
            self._wrong("I2", f"the ID {new.id} was used again")
        self.intents[new.id] = at
        if new.state is State.DELETING:
            self._wrong("I10", f"{new.id} was taken for an orphan ({new.cause})")
            return
        members = [m for m in self.fold.values() if m.key == new.key and m.counts]
        known = {m.id for m in members}
        places, size = sum(m.replaces not in known for m in members), self.world.sizes[new.group]
        if places > size:
            self._wrong("I2", f"{new.key} has {places} places filled, {size} were wished: {new.id} is one too many")
        if new.replaces is not None:
            rivals = [m.id for m in members if m.replaces == new.replaces]
            if len(rivals) > 1:
                self._wrong("I2", f"{new.replaces} is replaced by {rivals}")
            if new.replaces_for is Cause.UNHEALTHY:
                self._silent(at, new.replaces, SUSPECT_AFTER, "got a replacement")

    # ---- why something left

    def _left(self, at: float, old: Instance, new: Instance) -> None:
        cause = new.cause or (new.drain.cause if new.drain is not None else None)
        word = cause.value if cause is not None else "no cause"
        self.causes[word] += 1
        self.left[new.id] = at, word
        harm = self.world.harm.get(new.id, [])
        match cause:
            case Cause.GONE:
                if not any(h.kind == "killed" and h.began <= at + CLOCK_ERROR for h in harm):
                    self._wrong("I10", f"{new.id} was taken for gone, but nobody killed it")
            case Cause.UNHEALTHY:
                self._silent(at, new.id, DEAD_AFTER, "was given up")
                if not any(m.replaces == new.id and m.state is not State.PENDING for m in self.fold.values()):
                    self._wrong("I10", f"{new.id} goes for silence before its replacement was made")
            case Cause.SUPERSEDED:
                if old.replaces is None:
                    self._wrong("I10", f"{new.id} was superseded, but replaced nobody")
            case _:
                self._wrong("I10", f"{new.id} left for {word}, and nothing was done that explains it")

    def _silent(self, at: float, id: InstanceId, least: float, what: str) -> None:
        """Whether it was away for so long, and the leader that says so led for so long (F60)."""
        fences = [began for began, _ in self.fences]
        away = unheard([*self.world.harm.get(id, []), *self.world.cuts], fences, at)
        if away < least - ALLOWANCE:
            self._wrong("I10", f"{id} {what} as unhealthy, but was away for {away:.1f} s only")
        led = at - max(fences)
        if led < least - CLOCK_ERROR:
            self._wrong("I10", f"{id} {what} as unhealthy by a leader that had listened for {led:.1f} s only")

    # ---- VMs

    def _vms(self) -> None:
        """I1, I3, I5: each VM was made after its intent, by somebody who led; each deletion came after its tombstone."""
        reigns = dict(_reigns(self.world))  # epoch → incarnation
        for id, seen in self.world.vms.seen.items():
            intent = self.intents.get(InstanceId(id))
            if intent is None:
                self._wrong("I1", f"a VM for {id} was made without an intent in the journal")
            elif seen.made < intent - CLOCK_ERROR:
                self._wrong("I1", f"the VM of {id} was made {intent - seen.made:.2f} s before its intent was stored")
            self._maker(id, seen.maker, seen.made, reigns)
        for id, at in self.world.vms.buried().items():
            tombstone = self.tombstones.get(InstanceId(id))
            if tombstone is None:
                self._wrong("I3", f"the deletion of {id} has no committed tombstone")
            elif at < tombstone - CLOCK_ERROR:
                self._wrong("I3", f"{id} was deleted {tombstone - at:.2f} s before its tombstone was stored")

    def _maker(self, id: str, maker: str, made: float, reigns: dict[int, str]) -> None:
        led = [epoch for epoch, name in reigns.items() if name == maker]
        if not led:
            self._wrong("I5", f"the VM of {id} was made by {maker}, which never led")
            return
        current = max((epoch for at, epoch in self.fences if at <= made - CLOCK_ERROR), default=0)
        if current in led or max(led) > current:
            return
        over = min(at for at, epoch in self.fences if epoch > max(led))
        stops = next(life.stops for c in self.world.servers.values() for life in c.lives if life.name == maker)
        slept = max((end for begin, end in stops if begin <= made), default=0.0)
        if made > max(over, slept) + IN_FLIGHT:
            self._wrong("I5", f"{maker} made the VM of {id} {made - over:.1f} s after its epoch was over")

    def _wrong(self, mark: str, what: str) -> None:
        self.problems.append(f"{mark}: {what}")


async def fold(world: World) -> Mapping[InstanceId, Instance]:
    """The records as a new leader would read them."""
    store = world.store()
    try:
        books = journal.Journal(
            store,
            journal_prefix=storage_keys.journal_prefix(SHARD),
            snapshot_prefix=storage_keys.snapshot_prefix(SHARD),
            clock=SystemClock(),
        )
        book, _ = await books.load()
        return book.instances
    finally:
        await store.close()


def unheard(harm: list[Harm], fences: list[float], at: float) -> float:
    """For how long an agent may have been out of reach at that time. It needs a moment to come back after it was silenced
    and after each change of leaders, and trouble that comes within that moment counts as one; but trouble that it
    shared with everybody, a new leader, explains nothing alone."""
    troubles = sorted([(each.began, each.ended) for each in harm] + [(fence, fence) for fence in fences])
    own, began, ended = False, at, float("-inf")
    for first, last in troubles:
        if first > at:
            break
        if first > ended + FINDS_ITS_WAY:
            own, began = False, first
        own |= last > first
        ended = max(ended, last)
    return at - began if own and at <= ended + FINDS_ITS_WAY else 0.0


def _reachable(old: State, new: State) -> bool:
    """In one step, or in several that one decision took together."""
    reached, todo = {old}, [old]
    while todo:
        for following in TRANSITIONS[todo.pop()] - reached:
            reached.add(following)
            todo.append(following)
    return new in reached


def _reigns(world: World) -> Iterator[tuple[int, str]]:
    """Which incarnation led in which epoch, by their own logs."""
    for child in world.servers.values():
        for life in child.lives:
            for record in records(life.log.read_text(errors="replace")):
                if record.get("message") == "leadership acquired":
                    yield int(record["epoch"]), life.name


def records(text: str) -> Iterator[dict[str, Any]]:
    """Log lines; what is no record of ours is given back as one without a level."""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        yield found if isinstance(found, dict) else {"message": line}
