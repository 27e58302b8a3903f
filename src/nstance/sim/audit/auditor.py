"""Checks the invariants on what is stored and on every call to the cloud.

I1 no leaked VM (here: none is created without an intent; `quiescence`: none is left at rest), I2 no duplicate VM, I3 no
deletion without a committed tombstone, I4 groups settle (`quiescence`), I5 one writer, I6 what was acknowledged survives,
I7 one nonce and one key, I10 in doubt nothing is deleted (`departures`); R1 to R8 are in `rollouts`, C1 to C3 in
`capacity`. The auditor trusts no server: it replays the journal as it is stored, and compares with the simulated world.
"""

import base64
import json
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from nstance.config import storage_keys
from nstance.model.consistency import violations
from nstance.model.decision import Reason
from nstance.model.ids import GroupKey, InstanceId, ProviderId, TenantId
from nstance.model.instance import CAPACITY, Cause, Instance, Put, Remove, State, reachable
from nstance.model.offer import Offer
from nstance.model.rollout import GroupRecord
from nstance.objects import slots
from nstance.providers.errors import NoCapacityError
from nstance.providers.port import CreateRequest, Status
from nstance.sim.agent import key_pair
from nstance.sim.agent_port import AgentPort
from nstance.sim.audit.capacity import CapacityAuditor
from nstance.sim.audit.departures import DepartureAuditor, Truth
from nstance.sim.audit.desired_history import DesiredHistory
from nstance.sim.audit.rollouts import RolloutAuditor
from nstance.sim.desired_groups import SHARD

if TYPE_CHECKING:
    from nstance.sim.world import World

JOURNAL = storage_keys.journal_prefix(SHARD)
LEASE = storage_keys.lease(SHARD)
RUNNING = frozenset({Status.PENDING, Status.RUNNING})
LEAVING = frozenset({State.DRAINING, State.DELETING})
CREATED = frozenset({State.STARTING, State.RUNNING})
DRAINER_SECONDS = 50.0  # for which an operator counts as present after its last visit: its lease is longer


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the auditor knew of storage when a backup was made."""

    records: dict[InstanceId, Instance]
    tail: int
    epoch: int
    lease: tuple[int, str]
    groups: dict[GroupKey, GroupRecord]
    drainers: frozenset[TenantId]


class Auditor:
    """Its methods `on_…` are called by `watched_ports` and the world, at the moment at which something is applied."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.records: dict[InstanceId, Instance] = {}  # the journal as it is stored
        self.rollouts = RolloutAuditor(world)
        self.departures = DepartureAuditor(world, self)
        self.capacity = CapacityAuditor(world)
        self.desired = DesiredHistory(world)
        self.created: set[InstanceId] = set()  # whose VMs were there; only in worlds that are not audited
        self.tail = 0
        self.epoch = 0
        self.truth = Truth(0.0)  # of the decision whose entry is being checked
        self.is_restoring = False  # a backup is being restored: writes are not checked
        # What the nemesis did, and what follows from it.
        self.planted: dict[InstanceId, ProviderId | None] = {}  # VMs with our tags that no server created
        self.lost: set[InstanceId] = set()  # IDs whose records a restored backup does not have
        self.released: set[InstanceId] = set()  # VMs without a record that a person wanted deleted
        self.deletable: set[InstanceId] = set()  # VMs that may be deleted or stay
        self.protected: dict[InstanceId, str] = {}  # VMs that must not be deleted, and why
        self.requested: set[InstanceId] = set()  # deletions and replacements by request
        self.cloned: set[InstanceId] = set()  # whose identity a second agent used
        self.drained: set[InstanceId] = set()  # drains that the operator acknowledged
        self.operator_seen_at = -inf
        self.duplicate_vms: set[tuple[InstanceId, ProviderId]] = set()
        self.drainers: set[TenantId] = set()  # tenants with an operator that drains, as it is stored
        self._intents: dict[InstanceId, Instance] = {}  # of all time
        self._tombstones: set[InstanceId] = set()
        self._certificates: dict[InstanceId, str] = {}  # acknowledged registrations, by the key
        self._lease = (0, "")
        self._truths: dict[str, Truth] = {}  # of decisions that are not stored yet
        self._decisions = slots.Assembler()
        self._vm_ended: dict[InstanceId, float] = {}  # when the last VM of this ID ended
        self._record_ended: dict[InstanceId, float] = {}

    # ---- storage

    def checkpoint(self) -> Checkpoint:
        groups, drainers = dict(self.rollouts.groups), frozenset(self.drainers)
        return Checkpoint(dict(self.records), self.tail, self.epoch, self._lease, groups, drainers)

    def restore(self, to: Checkpoint) -> None:
        """Storage is as it was then."""
        self.records, self.tail, self.epoch, self._lease = dict(to.records), to.tail, to.epoch, to.lease
        self.rollouts.groups, self.drainers = dict(to.groups), set(to.drainers)
        self._decisions = slots.Assembler()  # a new leader comes next, so parts of a decision are void
        self.lost = {id for id in self._intents if id not in self.records}
        # Without tags no listing shows it, and without a record no server asks for it.
        self.deletable |= {vm.id for vm in self._world.cloud.vms() if vm.id in self.lost and vm.cluster is None}
        for id, key in list(self._certificates.items()):
            if not self._has_key(id, key):
                del self._certificates[id]

    def on_store(self, key: str, body: bytes | None) -> None:
        if self.is_restoring or body is None:
            return
        if key.startswith(JOURNAL):
            number = int(key[len(JOURNAL) : -5])
            slot = slots.decode_slot(number, body)
            if self._world.setup.audited:
                self.desired.note()
                self._check_slot(number, slot)
                return
            for entry in self._decisions.add(slot):
                slots.apply(self.records, entry.changes)
                self.created.update(
                    c.instance.id for c in entry.changes if isinstance(c, Put) and c.instance.state in CREATED
                )
        elif key == LEASE and self._world.setup.audited:
            self._check_lease(json.loads(body))

    def _check_lease(self, lease: dict[str, object]) -> None:
        holder: dict[str, str] = lease["holder"]  # type: ignore[assignment]
        epoch, incarnation = int(str(lease["epoch"])), holder["incarnation"]
        old_epoch, old_incarnation = self._lease
        if epoch < old_epoch or (epoch == old_epoch and incarnation != old_incarnation):
            self._report(
                "I5", f"the lease goes from epoch {old_epoch} of {old_incarnation} to {epoch} of {incarnation}"
            )
        if not old_epoch:
            # By its writer's clock: the time in the lease is older if the writer was paused before it was stored.
            writer = next(s for s in self._world.servers if s.name == holder["server"])
            self._world.began = writer.machine.steady() - self._world.now
        if epoch > old_epoch and old_epoch:
            self._world.count("lease changed hands")
        self._lease = epoch, incarnation

    def _check_slot(self, number: int, slot: slots.Slot) -> None:
        if number != self.tail + 1:
            self._report("I5", f"slot {number} was written after slot {self.tail}")
        if slot.epoch < self.epoch:
            self._report("I5", f"slot {number} has epoch {slot.epoch} after {self.epoch}")
        self.tail, self.epoch = number, slot.epoch
        for entry in self._decisions.add(slot):
            before = dict(self.records)
            slots.apply(self.records, entry.changes)
            slots.apply_drainers(self.drainers, entry.drainers)
            self.truth = self._truths.pop(entry.id)
            for change in entry.changes:
                self.check_change(before, change)
            self.rollouts.check_entry(entry, before, self.records, self.truth.views)
        self._world.log("slot", number, slot.epoch, len(slot.entries))
        for problem in violations(self.records):
            self._report("I6", f"slot {number} leaves an inconsistent record: {problem}")

    def check_change(self, before: dict[InstanceId, Instance], change: Put | Remove) -> None:
        if isinstance(change, Remove):
            old = before.get(change.id)
            if old is not None and old.ended is None:
                self._report("I6", f"the record of {change.id} was removed in state {old.state.value}")
            return
        new = change.instance
        old = before.get(new.id)
        if new.state is State.DELETING:
            self._tombstones.add(new.id)
        if new.duplicate_vm is not None and (new.id, new.duplicate_vm) not in self.duplicate_vms:
            self.duplicate_vms.add((new.id, new.duplicate_vm))
            if new.duplicate_vm in self.truth.connected and new.state is not State.DELETING:  # that ends all its VMs
                self._report("I10", f"{new.duplicate_vm} is connected as {new.id}, but was considered a duplicate")
        if old is None:
            self._check_new(new)
            return
        if new.state is not old.state:
            self._world.log("state", new.id, new.state.value, new.cause.value if new.cause else "")
            if new.state not in reachable(old.state):
                self._report("I6", f"{new.id} changed from {old.state.value} to {new.state.value}")
        if new.ended is not None and old.ended is None:
            self._record_ended[new.id] = self._world.now
        elif old.ended is not None and new.ended is None:
            self._check_reopened(new)
        if new.state is State.DRAINING and old.state is not State.DRAINING:
            self._world.on_moment("drain")
        if old.public_key and new.public_key != old.public_key:
            self._report("I7", f"{new.id} has another key")
        if old.state in CAPACITY and new.state in LEAVING:
            self.departures.check(old, new, before)
        if old.state is State.DRAINING and new.state is State.DELETING:
            self.departures.check_drain_end(old, new)

    def _check_reopened(self, new: Instance) -> None:
        """A VM was found after its record had ended: it must have been there after that."""
        if new.id not in self.truth.existing and self._vm_ended.get(new.id, inf) <= self._record_ended.get(new.id, 0.0):
            self._report("I10", f"{new.id} is deleted again, but its VM was gone when its record ended")

    def _check_new(self, new: Instance) -> None:
        world = self._world
        world.log("appeared", new.id, new.state.value, new.replaces or "")
        if new.id in self._intents and new.id not in self.lost:
            self._report("I2", f"the ID {new.id} was used again")
        is_unknown = new.id in self.lost or new.id in self.planted or new.id in self.deletable
        self.lost.discard(new.id)
        self._intents[new.id] = new
        if new.state is State.DELETING:
            if new.cause is Cause.REQUESTED and new.id in self.released:
                world.count("released")
            elif new.cause is not Cause.ORPHAN or not is_unknown or world.desired_groups.unknown == "hold":
                self._report("I10", f"{new.id} was considered an orphan ({new.cause})")
            return
        if new.state is not State.PENDING:
            world.count("adopted")
            if not is_unknown:
                self._report("I1", f"{new.id} was adopted, but its record was never lost")
            keys = {key_pair(a.number)[1] for a in world.agents_of(new.id) if a.registered}
            if new.public_key and base64.b64decode(new.public_key) not in keys:
                self._report("I7", f"{new.id} was adopted with a key that is not its agent's")
        if new.on_demand:
            return
        desired = self.desired.of(new.key)
        if not desired:
            self._report("I2", f"{new.id} was created for {new.key}, which no configuration has")
            return
        places, most = self.count_places(new.key), max(g.size for g in desired)
        if places > most:
            self._report("I2", f"{new.key} has {places} places filled of {most}: {new.id} is one too many")
        if new.state is State.PENDING:  # an adopted VM was not created for a place
            self._check_attribution(new)
        if new.replaces is not None:
            self.departures.check_age(self.records[new.replaces], new.replaces_for)
            world.on_moment("replacement")
            rivals = [m.id for m in self.members(new.key) if m.counts and m.replaces == new.replaces]
            if len(rivals) > 1:
                self._report("I2", f"{new.replaces} is replaced by {rivals}")

    def _check_attribution(self, new: Instance) -> None:
        """An instance that is created while a place is vacant names the instance that left or is to leave it."""
        vacant = [m.id for m in self.members(new.key) if m.vacant]
        predecessor = new.replaces or new.predecessor
        if predecessor is None and vacant:
            self._report("reasons", f"{new.id} is attributed to growth, but the place of {vacant[0]} is vacant")
        if predecessor is not None and predecessor not in {m.id for m in self.members(new.key)}:
            self._report("reasons", f"{new.id} replaces {predecessor}, which is not in its group")

    def members(self, key: GroupKey) -> list[Instance]:
        return [m for m in self.records.values() if m.key == key]

    def count_places(self, key: GroupKey) -> int:
        """An instance and its replacement share a place."""
        members = [m for m in self.members(key) if m.counts]
        ids = {m.id for m in members}
        return sum(m.replaces not in ids for m in members)

    # ---- decisions

    def decided(self, entry: slots.Entry, port: AgentPort) -> None:
        """A leader has decided this. It may be stored much later, when the world has changed."""
        world = self._world
        if not world.setup.audited:
            return
        self.desired.note()
        has_drainer = bool(self.drainers) and world.now - self.operator_seen_at <= DRAINER_SECONDS
        self.capacity.check_decision(entry, self.records, (port.server.name, self.epoch))
        views = self.rollouts.views(entry, port)
        truth = self._truths[entry.id] = Truth(world.now, has_drainer=has_drainer, views=views)
        for new in (change.instance for change in entry.changes if isinstance(change, Put)):
            if agents := world.agents_of(new.id):
                truth.unresponsive[new.id] = world.now - max(a.last_seen_by(port) for a in agents)
                truth.healthy[new.id] = max(a.healthy_for() for a in agents)
                truth.connected.update(
                    a.provider_id for a in agents if a.connection is not None and a.connection.port is port
                )
            for vm in world.cloud.existing(new.id):
                truth.existing.add(new.id)
                if vm.status in RUNNING and vm.provider_id == (new.provider_id or vm.provider_id):
                    truth.running.add(new.id)

    def on_reasons(self, reasons: tuple[Reason, ...]) -> None:
        for reason in reasons:
            if reason.message.startswith("two agents use its identity") and not self.is_cloned(reason.instance):
                self._report("I10", f"{reason.instance} was reported as cloned, but has one agent")

    def is_cloned(self, id: InstanceId | None) -> bool:
        """A second agent used its identity. After a restored backup a duplicate VM may register where another one had."""
        if id is None:
            return False
        return id in self.cloned or sum(agent.registered for agent in self._world.agents_of(id)) > 1

    # ---- the cloud

    def on_call(self, server: str, verb: str, id: InstanceId) -> None:
        """Only the leader begins a call that changes something (I5)."""
        world = self._world
        world.count(f"calls {verb}")
        if not world.setup.audited:
            return
        for other in world.servers:
            if other.name == server:
                if not other.leading:
                    self._report("I5", f"{server} begins to {verb} {id} without leading")
            elif other.leading and not other.machine.stopped and not world.setup.freezes:
                self._report("I5", f"{server} and {other.name} both act")

    def on_create(self, id: InstanceId, offer: Offer) -> None:
        world = self._world
        if not world.setup.audited:
            return
        self.capacity.on_created(offer)
        if id not in self._intents and id not in self.planted and not world.planting:
            self._report("I1", f"a VM for {id} is created without an intent in the journal")
        record = self.records.get(id)
        if record is not None and record.state in LEAVING:
            world.count("create applied after its tombstone")
        if record is not None and record.ended is not None and record.provider_id is None and not world.planting:
            self._report("I2", f"{id} was closed as {record.state.value} while its create was on its way")
        if world.cloud.existing(id):
            world.count("create repeated, VM was there")
        world.log("create", id)
        if not world.planting:
            world.on_moment("create")

    def on_register_target(self, provider_id: ProviderId) -> None:
        if self._world.setup.audited:
            self.rollouts.check_target(provider_id)

    def on_delete(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        world = self._world
        world.log("delete", id)
        if not world.setup.audited:
            return
        if id in self.protected and (provider_id is None or id not in self._intents):
            self._report("I3", f"{id} was deleted, but {self.protected[id]}")
        elif id not in self._tombstones and (provider_id is None or (id, provider_id) not in self.duplicate_vms):
            self._report("I3", f"the delete of {id} has no committed tombstone")
        if not world.cloud.existing(id):
            world.count("delete repeated, VM was gone")
        world.on_moment("delete")

    def on_listing(self) -> None:
        self._world.on_moment("listing")

    def on_create_call(self, server: str, request: CreateRequest) -> None:
        if self._world.setup.audited:
            self.capacity.on_create_call(request, (server, self.epoch))

    def on_refused(self, server: str, request: CreateRequest, error: NoCapacityError) -> None:
        """A server has received the answer that there is no capacity."""
        if self._world.setup.audited:
            self.capacity.on_refused(request, error, (server, self.epoch))

    def on_second_vm(self, id: InstanceId) -> None:
        """A create call for another offer made a second VM with an ID."""
        self.capacity.on_second_vm(id)

    def on_vm_end(self, id: InstanceId) -> None:
        self.capacity.on_vm_end()
        self._vm_ended[id] = self._world.now

    # ---- acknowledgements

    def on_certificate(self, id: InstanceId, public_key: bytes) -> None:
        """An agent holds a certificate."""
        if not self._world.setup.audited:
            return
        key = base64.b64encode(public_key).decode()
        if not self._has_key(id, key):
            self._report("I6", f"{id} has a certificate, but the journal does not have its key")
        if self._certificates.setdefault(id, key) != key:
            self._report("I7", f"{id} has two identities")

    def _has_key(self, id: InstanceId, key: str) -> bool:
        record = self.records.get(id)
        return record is not None and record.public_key == key

    def on_drain_acknowledged(self, id: InstanceId) -> None:
        record = self.records.get(id)
        if record is None or record.state in CAPACITY or record.state is State.DRAINING:
            self._report("I6", f"the acknowledged drain of {id} is not in the journal")

    # ---- the end of a run

    def finish(self) -> None:
        for id, key in self._certificates.items():
            if not self._has_key(id, key):
                self._report("I6", f"the acknowledged registration of {id} is lost")
        existing = {vm.id for vm in self._world.cloud.vms()}
        for id, why in self.protected.items():
            if id not in existing:
                self._report("I3", f"{id} is gone, but {why}")
        if self._world.cloud.mismatched:
            self._report("I2", f"a create was repeated with another request: {self._world.cloud.mismatched}")

    def _report(self, invariant: str, text: str) -> None:
        self._world.violation(f"{invariant}: {text}")
