"""Who watches rollouts: limits, order, pauses and halts, rollbacks, and who is sent requests.

R1 no more VMs than the size and `max_surge` together, but for what was not voluntary; R2 no voluntary work leaves fewer
ready than `max_unavailable` allows, and nobody goes for a replacement that is not ready; R3 a rollout that is held does
not go on, and keeps to its order and its canaries; R4 a rollback leads to the last revision that was complete; R5 nobody
is registered with a load balancer who was not ready. What is judged is what agents have told the leader that decided.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nstance.model.group import Group, UpdateOrder
from nstance.model.ids import GroupKey, InstanceId, ProviderId
from nstance.model.instance import CAPACITY, ENDED, Cause, Instance, Put, State
from nstance.model.rollout import GroupRecord, Outcome, Revision
from nstance.objects import slots
from nstance.sim.agent import AgentPort

if TYPE_CHECKING:
    from nstance.sim.world import World

VOLUNTARY = frozenset({Cause.DRIFT, Cause.ELIGIBLE_EXPIRY})
LEAVING = frozenset({State.DRAINING, State.DELETING})
ALLOWANCE = 1.5  # seconds by which what an agent has told may be on its way
LATE_CALL = 40.0  # seconds that a call to a load balancer may be under way

Records = Mapping[InstanceId, Instance]


@dataclass(frozen=True, slots=True)
class View:
    """What a leader wished and had been told of a group when it decided about it."""

    at: float
    desired: Group | None
    since: dict[InstanceId, float]  # who seemed ready, and since when
    firmly: set[InstanceId]  # who had said so for a while


class RolloutAuditor:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.groups: dict[GroupKey, GroupRecord] = {}  # the journal as it is stored
        self._most: dict[GroupKey, int] = {}  # VMs that may be there, while some leave

    def views(self, entry: slots.Entry, door: AgentPort) -> dict[GroupKey, View]:
        shard = door.lead.shard
        keys = {change.instance.key for change in entry.changes if isinstance(change, Put)}
        return {key: self._view(door, shard.members(key), shard.desired_groups.get(key)) for key in keys}

    def _view(self, door: AgentPort, members: Iterable[InstanceId], desired: Group | None) -> View:
        view = View(self._world.now, desired, {}, set())
        for id in members:
            for agent in self._world.agents_of(id):
                if (since := agent.seemed_ready(door, within=ALLOWANCE)) is not None:
                    view.since[id] = since
                    if since <= view.at - ALLOWANCE and agent.ready_told[door][1] is None:
                        view.firmly.add(id)
        return view

    def entry(self, entry: slots.Entry, before: Records, after: Records, views: Mapping[GroupKey, View]) -> None:
        was = dict(self.groups)
        slots.apply_groups(self.groups, entry.groups)
        for record in entry.groups:
            self._recorded(was.get(record.key), record)
        changed = [c.instance for c in entry.changes if isinstance(c, Put) and not c.instance.on_demand]
        for key, view in views.items():
            desired = view.desired
            if desired is None:
                continue
            mine = [i for i in changed if i.key == key]
            made = [i for i in mine if i.id not in before and i.state is State.PENDING]  # not those that were adopted
            left = [i for i in mine if i.state in LEAVING and i.cause in VOLUNTARY and _counted(before, i.id)]
            begun = [i for i in made if _is_voluntary(i, after)]
            # What is made now fills a place that is free; it does not take that of another one.
            known = {id: i for id, i in after.items() if id in before}
            first = [i for i in left if not _takers(known, i.id)]
            most = desired.size + (desired.max_surge or (0 if desired.max_unavailable else 1))
            lately = self._most[key] = max(most, self._most.get(key, 0) if _is_busy(key, before) else 0)
            if begun:
                self._existing(after, desired, most)
            elif any(not _is_linked(i, after) for i in made):
                self._existing(after, desired, lately)  # what is under way was begun by older limits
            for gone in left:
                self._left(gone, after, _takers(known, gone.id), view, desired)
            if begun or left:
                self._held(key, was.get(key), begun, left)
            if begun or first:
                self._ordered(before, after, view, desired, _ids((*begun, *first)))

    def _existing(self, after: Records, desired: Group, most: int) -> None:
        """R1"""
        there = [i for i in after.values() if i.key == desired.key and not i.on_demand and i.state not in ENDED]
        explained = sum(i.state in LEAVING and i.cause not in VOLUNTARY for i in there)
        explained += sum(_is_linked(i, after) and not _is_voluntary(i, after) for i in there)
        if len(there) - explained > most:
            what = f"{len(there)} VMs, {explained} of them involuntarily, and may have {most}"
            self._wrong("R1", f"{desired.key} has {what}")

    def _left(self, old: Instance, after: Records, takers: list[Instance], view: View, desired: Group) -> None:
        """R2"""
        if takers and not any(t.id in view.since for t in takers):
            self._wrong("R2", f"{old.id} went for {takers[0].id}, which is not ready")
        if old.id not in view.firmly:
            return
        ready = sum(i.id in view.since for i in after.values() if i.key == old.key and _serves(i))
        least = desired.size - desired.max_unavailable
        if ready < least:
            self._wrong("R2", f"{old.id} went voluntarily, and {ready} of {least} are ready")

    def _held(self, key: GroupKey, was: GroupRecord | None, begun: list[Instance], left: list[Instance]) -> None:
        """R3"""
        before, now = _current(was), _current(self.groups.get(key))
        if before is None or now is None or before.infra_hash != now.infra_hash:
            return
        if before.outcome is Outcome.HALTED and now.outcome is Outcome.HALTED:
            self._wrong("R3", f"the halted rollout of {key} went on: {[i.id for i in (*begun, *left)]}")
        if before.outcome is Outcome.PAUSED and now.outcome is Outcome.PAUSED and begun:
            self._wrong("R3", f"the paused rollout of {key} went on: {[i.id for i in begun]}")

    def _ordered(self, before: Records, after: Records, view: View, desired: Group, steps: set[InstanceId]) -> None:
        """R3"""
        members = [i for i in after.values() if i.key == desired.key and not i.on_demand]
        current = [i for i in members if i.state in CAPACITY and i.infra_hash == desired.infra_hash]
        if desired.order is UpdateOrder.SERIAL:
            if len(steps) > 1:
                self._wrong("R3", f"{desired.key} takes {len(steps)} steps at once")
            if busy := [i.id for i in members if i.state in LEAVING and i.cause in VOLUNTARY and i.id not in steps]:
                self._wrong("R3", f"{desired.key} takes a step while {busy[0]} is not gone")
            for i in current:
                since = view.since.get(i.id)
                if i.id in before and (since is None or since > view.at - desired.settle + ALLOWANCE):
                    self._wrong("R3", f"{desired.key} takes a step while {i.id} has not settled")
        now = _current(self.groups.get(desired.key))
        pauses = desired.canary > 0 and now is not None and now.resumed_at is None
        if pauses and len(current) > desired.canary and steps & _ids(current):
            what = f"{len(current)} instances of a revision that is to pause after {desired.canary}"
            self._wrong("R3", f"{desired.key} has {what}")

    def _recorded(self, was: GroupRecord | None, now: GroupRecord) -> None:
        """R4"""
        if was is None or len(now.revisions) < 2 or now.revisions[-2].outcome is not Outcome.ROLLED_BACK:
            return
        if _current(was) is None or len(was.revisions) == len(now.revisions) or was.revisions[-1] == now.revisions[-2]:
            return
        target = was.last_complete()
        if target is None or now.revisions[-1].infra_hash != target.infra_hash:
            self._wrong("R4", f"{now.key} was rolled back to a revision that is not the last complete one")
        else:
            self._world.count("rolled back to the last complete revision")

    def registering(self, provider_id: ProviderId) -> None:
        """R5"""
        vm = next((vm for vm in self._world.cloud.vms() if vm.provider_id == provider_id), None)
        agents = self._world.agents_of(vm.id) if vm is not None else []  # its double may speak for it
        ready = [until for agent in agents for _, until in agent.ready_told.values()]
        if vm is not None and not any(until is None or until >= self._world.now - LATE_CALL for until in ready):
            self._wrong("R5", f"{provider_id} is registered with a load balancer, but is not ready")
        self._world.count("registered with a load balancer")

    def _wrong(self, mark: str, what: str) -> None:
        self._world.violation(f"{mark}: {what}")


def _current(record: GroupRecord | None) -> Revision | None:
    return record.current if record is not None else None


def _ids(instances: Iterable[Instance]) -> set[InstanceId]:
    return {i.id for i in instances}


def _counted(records: Records, id: InstanceId) -> bool:
    return id in records and records[id].counts


def _is_busy(key: GroupKey, records: Records) -> bool:
    """Voluntary work is under way."""
    mine = [i for i in records.values() if i.key == key]
    return any((i.state in LEAVING and i.cause in VOLUNTARY) or _is_voluntary(i, records) for i in mine)


def _is_linked(instance: Instance, after: Records) -> bool:
    return instance.counts and instance.replaces is not None and _counted(after, instance.replaces)


def _is_voluntary(instance: Instance, after: Records) -> bool:
    """As far as records tell: a hint and a notice of the provider's look alike, so those are excused."""
    return _is_linked(instance, after) and instance.replaces_for in VOLUNTARY


def _takers(after: Records, id: InstanceId) -> list[Instance]:
    return [i for i in after.values() if i.replaces == id and i.counts]


def _serves(instance: Instance) -> bool:
    return instance.state is State.RUNNING and instance.counts and not instance.suspect
