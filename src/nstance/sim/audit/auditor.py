"""Who watches what is stored and what the cloud is made to do, and says what must not be.

The marks are those of the fault list: I1 no leaked VM, I2 no doubled VM, I3 no deletion without a committed tombstone, I4
groups settle, I5 one writer, I6 what was acknowledged survives, I7 one nonce and one key, I10 in doubt nothing is deleted.
The auditor believes nobody: it keeps its own fold of the journal as it lies in storage, and judges each step by what is
true in the simulated world.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from nstance.config import storage_keys
from nstance.core.inventory import UNKNOWN_AT_LEAST, UNKNOWN_SHARE
from nstance.model.consistency import violations
from nstance.model.decision import Reason
from nstance.model.group import Group
from nstance.model.ids import GroupKey, InstanceId, ProviderId, TenantId
from nstance.model.instance import CAPACITY, TRANSITIONS, Cause, Instance, Put, Remove, State
from nstance.model.rollout import GroupRecord
from nstance.objects import slots
from nstance.providers.port import Status
from nstance.sim.agent import AgentPort, key_pair
from nstance.sim.audit import quiescence
from nstance.sim.audit.rollouts import RolloutAuditor, View
from nstance.sim.desired_groups import CLUSTER, DEAD_AFTER, READY_TIMEOUT, REGISTRATION_TIMEOUT, SHARD

if TYPE_CHECKING:
    from nstance.sim.world import World

JOURNAL = storage_keys.journal_prefix(SHARD)
LEASE = storage_keys.lease(SHARD)
RUNS = frozenset({Status.PENDING, Status.RUNNING})
LEAVING = frozenset({State.DRAINING, State.DELETING})
UP = frozenset({State.STARTING, State.RUNNING})
MEMORY = 30.0  # seconds that a decision may be under way to storage
FINDS_ITS_WAY = 10.0  # seconds in which an agent that is well comes to a new leader
OPERATOR_STAYS = 50.0  # seconds after its last visit for which an operator surely counts: its lease is longer
ALLOWANCE = 1.5  # seconds by which what the auditor sees may be off: latencies, drifts, timers


@dataclass(frozen=True, slots=True)
class Then:
    """What was true when something was decided."""

    at: float
    silent: dict[InstanceId, float]  # for how long this leader had heard nothing of the agent
    well: dict[InstanceId, float]  # for how long nothing had been wrong with it
    runs: set[InstanceId]  # whose VMs ran
    speaking: set[ProviderId]  # whose agents were connected to this leader
    operated: bool  # the journal knew of an operator that drains, and it had been there of late
    exists: set[InstanceId] = field(default_factory=set)  # whose VMs were there, running or not
    views: Mapping[GroupKey, View] = field(default_factory=dict)  # of the groups that were decided about


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the auditor knew of storage when a backup was made."""

    fold: dict[InstanceId, Instance]
    tail: int
    epoch: int
    lease: tuple[int, str]
    groups: dict[GroupKey, GroupRecord]
    drainers: frozenset[TenantId]


class Auditor:
    """A `taps.Watcher`."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.fold: dict[InstanceId, Instance] = {}  # the journal as it is stored
        self.rollouts = RolloutAuditor(world)
        self.made: set[InstanceId] = set()  # whose VMs were there, in worlds that are not audited
        self.tail = 0
        self.epoch = 0
        self.planted: dict[InstanceId, ProviderId | None] = {}  # VMs that others made with our tags
        self.lost: set[InstanceId] = set()  # IDs whose records a restored backup does not have
        self.released: set[InstanceId] = set()  # VMs without a record that a person wanted deleted
        self.anybodys: set[InstanceId] = set()  # VMs that may be deleted or stay
        self.deaf = False  # while a backup is restored
        self.untouchable: dict[InstanceId, str] = {}  # VMs that nobody may delete, and why
        self.duplicate_vms: set[tuple[InstanceId, ProviderId]] = set()
        self.requested: set[InstanceId] = set()  # deletions and replacements that somebody asked for
        self.cloned: set[InstanceId] = set()  # whose identity a second agent used
        self.drained: set[InstanceId] = set()  # drains that the operator acknowledged
        self.drainers: set[TenantId] = set()  # tenants with an operator that drains, as it is stored
        self.operator_came = float("-inf")  # to whichever leader
        self._ever: dict[InstanceId, Instance] = {}  # every intent
        self._tombstones: set[InstanceId] = set()
        self._acknowledged: dict[InstanceId, str] = {}  # registrations, by the key
        self._lease = (0, "")
        self._decided: dict[str, Then] = {}
        self._then = Then(0.0, {}, {}, set(), set(), False)
        self._ended: dict[InstanceId, float] = {}  # when the last VM of this ID ended
        self._closed: dict[InstanceId, float] = {}  # when its record ended
        self._desired_groups: dict[GroupKey, dict[tuple[int, str], tuple[float, Group]]] = {}

    # ---- storage

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            dict(self.fold), self.tail, self.epoch, self._lease, dict(self.rollouts.groups), frozenset(self.drainers)
        )

    def roll_back(self, to: Checkpoint) -> None:
        """Storage is as it was then."""
        self.fold, self.tail, self.epoch, self._lease = dict(to.fold), to.tail, to.epoch, to.lease
        self.rollouts.groups, self.drainers = dict(to.groups), set(to.drainers)
        self.lost = {id for id in self._ever if id not in self.fold}
        # Without tags no listing shows it, and without a record nobody asks for it.
        self.anybodys |= {vm.id for vm in self._world.cloud.vms() if vm.id in self.lost and vm.cluster is None}
        for id, key in list(self._acknowledged.items()):
            record = self.fold.get(id)
            if record is None or record.public_key != key:
                del self._acknowledged[id]

    def stored(self, key: str, body: bytes | None) -> None:
        if self.deaf:
            return
        if not self._world.setup.audited:
            if key.startswith(JOURNAL) and body is not None:
                for entry in slots.decode_slot(int(key[len(JOURNAL) : -5]), body).entries:
                    slots.apply(self.fold, entry.changes)
                    self.made.update(
                        c.instance.id for c in entry.changes if isinstance(c, Put) and c.instance.state in UP
                    )
        elif key == LEASE and body is not None:
            self._leased(body)
        elif key.startswith(JOURNAL) and body is not None:
            self.note_desired_groups()
            self._slot(int(key[len(JOURNAL) : -5]), body)

    def _leased(self, body: bytes) -> None:
        raw = json.loads(body)
        epoch, holder = int(raw["epoch"]), str(raw["holder"]["incarnation"])
        before, held_by = self._lease
        if epoch < before or (epoch == before and holder != held_by):
            self._wrong("I5", f"the lease goes from epoch {before} of {held_by} to {epoch} of {holder}")
        if not before:
            # By its writer's clock: what the lease says is older, if the writer was paused before it was stored.
            writer = next(s for s in self._world.servers if s.name == raw["holder"]["server"])
            self._world.began = writer.machine.steady() - self._world.now
        if epoch > before and before:
            self._world.count("lease changed hands")
        self._lease = epoch, holder

    def _slot(self, number: int, body: bytes) -> None:
        slot = slots.decode_slot(number, body)
        if number != self.tail + 1:
            self._wrong("I5", f"slot {number} was written after slot {self.tail}")
        if slot.epoch < self.epoch:
            self._wrong("I5", f"slot {number} has epoch {slot.epoch} after {self.epoch}")
        self.tail, self.epoch = number, slot.epoch
        for entry in slot.entries:
            before = dict(self.fold)
            slots.apply(self.fold, entry.changes)
            slots.apply_drainers(self.drainers, entry.drainers)
            self._then = self._decided.pop(entry.id)
            for change in entry.changes:
                self._changed(before, change)
            self.rollouts.entry(entry, before, self.fold, self._then.views)
        self._world.log("slot", number, slot.epoch, len(slot.entries))
        for problem in violations(self.fold):
            self._wrong("I6", f"slot {number} leaves an inconsistent record: {problem}")

    def _changed(self, before: dict[InstanceId, Instance], change: Put | Remove) -> None:
        if isinstance(change, Remove):
            old = before.get(change.id)
            if old is not None and old.ended is None:
                self._wrong("I6", f"the record of {change.id} was removed while it was {old.state.value}")
            return
        new = change.instance
        old = before.get(new.id)
        if new.state is State.DELETING:
            self._tombstones.add(new.id)
        if new.duplicate_vm is not None and (new.id, new.duplicate_vm) not in self.duplicate_vms:
            self.duplicate_vms.add((new.id, new.duplicate_vm))
            if new.duplicate_vm in self._then.speaking and new.state is not State.DELETING:  # that takes both with it
                self._wrong("I10", f"{new.duplicate_vm}, which speaks for {new.id}, was taken for a double")
        if old is None:
            self._appeared(new)
            return
        if new.state is not old.state:
            self._world.log("state", new.id, new.state.value, new.cause.value if new.cause else "")
            if new.state not in TRANSITIONS[old.state] and not _skips(old, new):
                self._wrong("I6", f"{new.id} went from {old.state.value} to {new.state.value}")
        if new.ended is not None and old.ended is None:
            self._closed[new.id] = self._world.now
        elif old.ended is not None and new.ended is None:
            self._reopened(new)
        if new.state is State.DRAINING and old.state is not State.DRAINING:
            self._world.on_moment("drain")
        if old.public_key and new.public_key != old.public_key:
            self._wrong("I7", f"{new.id} was given another key")
        if old.state in CAPACITY and new.state in LEAVING:
            self._left(old, new, before)
        if old.state is State.DRAINING and new.state is State.DELETING:
            self._drain_ended(old, new)

    def _reopened(self, new: Instance) -> None:
        """A VM turned up after its record had ended: it must have been there after that."""
        if new.id not in self._then.exists and self._ended.get(new.id, inf) <= self._closed.get(new.id, 0.0):
            self._wrong("I10", f"{new.id} is deleted again, but its VM was gone when its record ended")

    def _appeared(self, new: Instance) -> None:
        self._world.log("appeared", new.id, new.state.value, new.replaces or "")
        if new.id in self._ever and new.id not in self.lost:
            self._wrong("I2", f"the ID {new.id} was used again")
        unknown = new.id in self.lost or new.id in self.planted or new.id in self.anybodys
        self.lost.discard(new.id)
        self._ever[new.id] = new
        if new.state is State.DELETING:
            if new.cause is Cause.REQUESTED and new.id in self.released:
                self._world.count("released")
            elif new.cause is not Cause.ORPHAN or not unknown or self._world.desired_groups.unknown == "hold":
                self._wrong("I10", f"{new.id} was taken for an orphan ({new.cause})")
            return
        if new.state is not State.PENDING:
            self._world.count("adopted")
            if not unknown:
                self._wrong("I1", f"{new.id} was adopted, but its record was never lost")
            keys = {key_pair(a.number)[1] for a in self._world.agents_of(new.id) if a.registered}
            if new.public_key and base64.b64decode(new.public_key) not in keys:
                self._wrong("I7", f"{new.id} was adopted with a key that is not its agent's")
        if new.on_demand:
            return
        wished = self._wished(new.key)
        if not wished:
            self._wrong("I2", f"{new.id} was made for {new.key}, which nobody wishes")
            return
        places, most = self._places(new.key), max(g.size for g in wished)
        if places > most:
            self._wrong("I2", f"{new.key} has {places} places filled, {most} were wished: {new.id} is one too many")
        if new.state is State.PENDING:  # an adopted VM was not made to take a place, it only fills one
            self._attributed(new)
        if new.replaces is not None:
            self._world.on_moment("replacement")
            rivals = [m.id for m in self._members(new.key) if m.counts and m.replaces == new.replaces]
            if len(rivals) > 1:
                self._wrong("I2", f"{new.replaces} is replaced by {rivals}")

    def _attributed(self, new: Instance) -> None:
        """An instance that is made while a place is vacant says whom it replaces, and names one that left or is to leave."""
        vacant = [m.id for m in self._members(new.key) if m.vacant]
        before = new.replaces or new.predecessor
        if before is None and vacant:
            self._wrong("reasons", f"{new.id} is called growth, but the place of {vacant[0]} is vacant")
        old = self.fold.get(before) if before is not None else None
        if before is not None and (old is None or old.key != new.key):
            self._wrong("reasons", f"{new.id} replaces {before}, which its group does not know")

    def _members(self, key: GroupKey) -> list[Instance]:
        return [m for m in self.fold.values() if m.key == key]

    def _places(self, key: GroupKey) -> int:
        members = [m for m in self._members(key) if m.counts]
        ids = {m.id for m in members}
        return sum(m.replaces not in ids for m in members)

    def note_desired_groups(self) -> None:
        """Remember what each server believes now: a decision may be stored long after it was made."""
        if not self._world.setup.audited:
            return
        for server in self._world.servers:
            if server.elector is not None:
                for key, resolved in server.active_config.configuration.groups.items():
                    group = resolved.group
                    told = group.size, group.infra_hash
                    self._desired_groups.setdefault(key, {})[told] = (self._world.now, group)

    def _wished(self, key: GroupKey) -> list[Group]:
        """What the leaders that wrote of late may have believed to be wished."""
        self.note_desired_groups()
        return [group for at, group in self._desired_groups.get(key, {}).values() if at >= self._world.now - MEMORY]

    def decided(self, entry: slots.Entry, door: AgentPort) -> None:
        """A leader has decided this; it may be stored much later, when the world is another one."""
        world = self._world
        if not world.setup.audited:
            return
        self.note_desired_groups()
        operated = bool(self.drainers) and world.now - self.operator_came <= OPERATOR_STAYS
        views = self.rollouts.views(entry, door)
        then = self._decided[entry.id] = Then(world.now, {}, {}, set(), set(), operated, views=views)
        for change in entry.changes:
            if isinstance(change, Put):
                new = change.instance
                if agents := world.agents_of(new.id):
                    then.silent[new.id] = world.now - max(a.heard_by(door) for a in agents)
                    then.well[new.id] = max(a.well_for() for a in agents)
                    then.speaking.update(a.provider_id for a in agents if a.line is not None and a.line.door is door)
                for vm in world.cloud.truth(new.id):
                    then.exists.add(new.id)
                    if vm.status in RUNS and vm.provider_id == (new.provider_id or vm.provider_id):
                        then.runs.add(new.id)

    def told(self, reasons: tuple[Reason, ...]) -> None:
        """A leader has given reasons; some accuse somebody."""
        for reason in reasons:
            if reason.message.startswith("two agents use its identity") and not self._is_cloned(reason.instance):
                self._wrong("I10", f"{reason.instance} is said to be cloned, and has one agent")

    # ---- why something goes

    def _left(self, old: Instance, new: Instance, before: dict[InstanceId, Instance]) -> None:
        """No healthy VM dies by accident: each cause must be true in the world."""
        world, now = self._world, self._world.now
        world.count(f"left {new.cause.value if new.cause else 'without cause'}")
        noticed = {kind for agent in world.agents_of(new.id) for kind in agent.noticed}
        if old.state is State.RUNNING and new.state is State.DELETING:
            self._not_drained(new)
        match new.cause:
            case Cause.GONE:
                if new.id in self._then.runs:
                    self._wrong("I10", f"{new.id} was taken for gone, but its VM runs")
            case Cause.UNHEALTHY:
                self._unhealthy(old, new, before)
            case Cause.SPOT:
                if not noticed & {"SPOT_TERMINATION", "SPOT_REBALANCE"}:
                    self._wrong("I10", f"{new.id} leaves for a spot notice that nobody gave")
            case Cause.SHUTDOWN:
                if "SHUTDOWN" not in noticed:
                    self._wrong("I10", f"{new.id} leaves for a shutdown that nobody announced")
            case Cause.DRIFT:
                if not any(g.infra_hash != old.infra_hash for g in self._wished(new.key)):
                    self._wrong("I10", f"{new.id} leaves for drift, but is as everybody wishes")
            case Cause.SCALE_DOWN:
                wished = min((g.size for g in self._wished(new.key)), default=0)
                # In one decision a group may shrink, and one of the rest leave for another reason.
                others = sum(
                    m.cause is not Cause.SCALE_DOWN and not m.counts and m.id in before and before[m.id].counts
                    for m in self._members(new.key)
                )
                if self._places(new.key) + others < wished:
                    self._wrong("I10", f"{new.id} was scaled away below the size of {new.key}")
            case Cause.UNREGISTERED:
                if old.registered is not None or world.steady(new.created) < REGISTRATION_TIMEOUT - ALLOWANCE:
                    self._wrong("I10", f"{new.id} was given up as unregistered after {now:.1f} s")
                # A restored backup may not know of its registration; its certificate says so.
                could_connect = min(self._then.well.get(new.id, 0.0), self._then.silent.get(new.id, 0.0))
                if could_connect > FINDS_ITS_WAY:
                    self._wrong("I10", f"{new.id} was given up as unregistered, but its agent has a certificate")
            case Cause.SUPERSEDED:
                if old.registered is not None and old.replaces is None:
                    self._wrong("I10", f"{new.id} was superseded, but replaced nobody")
            case Cause.REQUESTED:
                copied = self._is_cloned(new.id) and world.desired_groups.on_clone == "replace"
                if new.id not in self.requested and not copied:
                    self._wrong("I10", f"{new.id} leaves by a request that nobody made")
            case _:
                self._wrong("I10", f"{new.id} leaves for {new.cause}, which cannot be here")

    def _unhealthy(self, old: Instance, new: Instance, before: dict[InstanceId, Instance]) -> None:
        world = self._world
        if self._was_never_ready(old):
            world.count("left never ready")
            return
        silent = self._then.silent.get(new.id, DEAD_AFTER)
        if silent < (DEAD_AFTER - ALLOWANCE) * (1 - 2 * world.setup.drift):
            self._wrong("I10", f"{new.id} was given up as unhealthy after {silent:.1f} s of silence")
        if (well := self._then.well.get(new.id, 0.0)) > FINDS_ITS_WAY:
            self._wrong("I10", f"{new.id} was given up as unhealthy, but was well for {well:.1f} s")
        # Before too: where the group shrinks in the same decision, a replacement that goes is nobody's any more. It may have
        # been made in this decision: then only its VM tells.
        members = (*before.values(), *self.fold.values())
        made = {m.id for m in members if m.state is not State.PENDING and (m.counts or m.provider_id is not None)}
        if not old.on_demand and not any(m.replaces == new.id and m.id in made for m in members):
            self._wrong("I10", f"{new.id} goes for silence before its replacement was made")
        running = [m for m in self.fold.values() if m.state is State.RUNNING or m.id == new.id]
        silent_ones = [m for m in running if self._is_silent(m.id)]
        if len(silent_ones) > 3 and len(silent_ones) * 2 > len(running):
            self._wrong("I10", f"{new.id} goes although {len(silent_ones)} of {len(running)} are silent")

    def _is_cloned(self, id: InstanceId | None) -> bool:
        """A second agent used its identity. After a restored backup a duplicate VM may register where another one had."""
        if id is None:
            return False
        return id in self.cloned or sum(agent.registered for agent in self._world.agents_of(id)) > 1

    def _was_never_ready(self, old: Instance) -> bool:
        if old.ready_at is not None or old.registered is None or old.id in self._then.views[old.key].firmly:
            return False
        return self._world.steady(old.registered) >= READY_TIMEOUT - ALLOWANCE

    def _is_silent(self, id: InstanceId) -> bool:
        """Whoever holds its identity. That a double was deleted, which never had it, is nobody's silence."""
        holders = [a for a in self._world.agents_of(id) if a.registered]
        return bool(holders) and all(a.silent_for() > DEAD_AFTER for a in holders)

    def _not_drained(self, new: Instance) -> None:
        """It goes at once, although somebody is there who would drain it."""
        if new.drain is not None:  # begun and ended in one decision
            self._drain_ended(new, new)
        elif self._then.operated and new.id in self._then.runs:
            wished = self._wished(new.key)
            if wished and all(group.drain_timeout > 0 for group in wished):
                self._wrong("I10", f"{new.id} goes without a drain")

    def _drain_ended(self, old: Instance, new: Instance) -> None:
        assert old.drain is not None
        if new.id in self.drained:
            return
        if self._world.steady(old.drain.deadline) >= -ALLOWANCE:
            self._world.count("drain deadline passed")
            return
        if new.id in self._then.runs:
            self._wrong("I10", f"the drain of {new.id} was cut short")

    # ---- the cloud

    def acting(self, server: str, what: str, id: InstanceId) -> None:
        """I5: whoever begins a call that changes something leads, and nobody else does."""
        world = self._world
        world.count(f"calls {what}")
        if not world.setup.audited:
            return
        for other in world.servers:
            if other.name == server:
                if not other.leading:
                    self._wrong("I5", f"{server} begins to {what} {id} without leading")
            elif other.leading and not other.machine.stopped and not world.setup.freezes:
                self._wrong("I5", f"{server} and {other.name} both act")

    def creating(self, id: InstanceId) -> None:
        world = self._world
        if not world.setup.audited:
            return
        if id not in self._ever and id not in self.planted and not world.planting:
            self._wrong("I1", f"a VM for {id} is made without an intent in the journal")
        known = self.fold.get(id)
        if known is not None and known.state in LEAVING:
            world.count("create applied after its tombstone")
        if known is not None and known.ended is not None and known.provider_id is None and not world.planting:
            self._wrong("I2", f"{id} was closed as {known.state.value} while its create was on its way")
        if world.cloud.truth(id):
            world.count("create repeated, VM was there")
        world.log("create", id)
        if not world.planting:
            world.on_moment("create")

    def registering(self, provider_id: ProviderId) -> None:
        if self._world.setup.audited:
            self.rollouts.registering(provider_id)

    def deleting(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        world = self._world
        world.log("delete", id)
        if not world.setup.audited:
            return
        if id in self.untouchable and (provider_id is None or id not in self._ever):
            self._wrong("I3", f"{id} was deleted, but {self.untouchable[id]}")
        elif id not in self._tombstones and (provider_id is None or (id, provider_id) not in self.duplicate_vms):
            self._wrong("I3", f"the delete of {id} has no committed tombstone")
        if not world.cloud.truth(id):
            world.count("delete repeated, VM was gone")
        world.on_moment("delete")

    def listed(self) -> None:
        self._world.on_moment("listing")

    def ended(self, id: InstanceId) -> None:
        """A VM runs no more."""
        self._ended[id] = self._world.now

    # ---- what others were told

    def acknowledged(self, id: InstanceId, public_key: bytes) -> None:
        """An agent holds a certificate."""
        if not self._world.setup.audited:
            return
        key = base64.b64encode(public_key).decode()
        record = self.fold.get(id)
        if record is None or record.public_key != key:
            self._wrong("I6", f"{id} was given a certificate, but the journal does not know its key")
        if self._acknowledged.setdefault(id, key) != key:
            self._wrong("I7", f"{id} has two identities")

    def drain_acknowledged(self, id: InstanceId) -> None:
        record = self.fold.get(id)
        if record is None or record.state in CAPACITY or record.state is State.DRAINING:
            self._wrong("I6", f"the acknowledged drain of {id} is not in the journal")

    def about_to_acknowledge(self, id: InstanceId) -> None:
        self.drained.add(id)

    # ---- at the end

    def unrest(self) -> str:
        return quiescence.find_unrest(self._world)

    def too_many_unknown(self) -> bool:
        """Whether their deletion waits for a person."""
        ours = [vm for vm in self._world.cloud.vms() if (vm.cluster, vm.shard) == (CLUSTER, SHARD)]
        unknown = sum(vm.id not in self.fold and vm.status is not Status.DELETED for vm in ours)
        return unknown > max(UNKNOWN_AT_LEAST, UNKNOWN_SHARE * len(ours))

    def finish(self) -> None:
        for id, key in self._acknowledged.items():
            record = self.fold.get(id)
            if record is None or record.public_key != key:
                self._wrong("I6", f"the acknowledged registration of {id} is lost")
        alive = {vm.id for vm in self._world.cloud.vms()}
        for id, why in self.untouchable.items():
            if id not in alive:
                self._wrong("I3", f"{id} is gone, but {why}")
        if self._world.cloud.mismatched:
            self._wrong("I2", f"a create was repeated with another request: {self._world.cloud.mismatched}")

    def _wrong(self, mark: str, what: str) -> None:
        self._world.violation(f"{mark}: {what}")


def _skips(old: Instance, new: Instance) -> bool:
    """Several allowed steps in one decision."""
    reached, todo = {old.state}, [old.state]
    while todo:
        for following in TRANSITIONS[todo.pop()] - reached:
            reached.add(following)
            todo.append(following)
    return new.state in reached
