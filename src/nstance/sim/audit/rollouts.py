"""Checks rollouts: their limits, order, pauses, halts and rollbacks, and which VMs receive requests.

R1 no more VMs than the size and `max_surge` allow, not counting involuntary work; R2 rotation and expiry never leave fewer
ready instances than `max_unavailable` allows, and an instance leaves only for a replacement that is ready; R3 a halted or
paused rollout does not continue, a paused one has its canaries, and rotation and expiry keep the order and the canaries; R4
a rollback leads to the last complete revision; R5 only ready VMs are registered with a load balancer; R6 an instance
receives only files and checks of its own revision, if that is stored; R7 while a rollout is held, instances are made from
an earlier revision that is stored, apart from canaries; R8 a rollout with too many failures does not go on where an earlier
revision was complete. An instance counts as ready if its agent has reported so to the leader that decided.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nstance.config import storage_keys
from nstance.model.group import Group, UpdateOrder
from nstance.model.ids import GroupKey, InstanceId, ProviderId
from nstance.model.instance import CAPACITY, ENDED, Cause, Instance, Put, State
from nstance.model.rollout import GroupRecord, Outcome, Revision
from nstance.objects import slots
from nstance.sim.agent_port import AgentPort
from nstance.sim.desired_groups import SHARD, check_name
from nstance.v1 import agent_pb2

if TYPE_CHECKING:
    from nstance.sim.world import World

LIMITED = frozenset({Cause.DRIFT, Cause.ELIGIBLE_EXPIRY, Cause.FORCED_EXPIRY, Cause.PREFERENCE})
HELD = frozenset({Outcome.PAUSED, Outcome.HALTED})
LEAVING = frozenset({State.DRAINING, State.DELETING})
REPORT_SECONDS = 1.5  # for which an agent's report may be on its way
TARGET_CALL_SECONDS = 40.0  # for which a call to a load balancer may be on its way

Records = Mapping[InstanceId, Instance]


@dataclass(frozen=True, slots=True)
class View:
    """What a leader knew of a group when it decided about it."""

    at: float
    desired: Group | None
    ready_since: dict[InstanceId, float]
    firmly_ready: set[InstanceId]  # reported ready for a while, and still


class RolloutAuditor:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.groups: dict[GroupKey, GroupRecord] = {}  # the journal as it is stored
        self._limits: dict[GroupKey, int] = {}  # the highest number of VMs since the group was last idle
        self._surges: dict[GroupKey, int] = {}  # the same, above the size
        self._generations: dict[tuple[GroupKey, str], object] = {}  # by infra hash

    def views(self, entry: slots.Entry, port: AgentPort) -> dict[GroupKey, View]:
        shard = port.lead.shard
        keys = {change.instance.key for change in entry.changes if isinstance(change, Put)}
        for key in keys:
            if (resolved := port.lead.configuration.groups.get(key)) is not None:
                self._generations[key, resolved.group.infra_hash] = resolved.args["generation"]
        return {key: self._view(port, shard.members(key), shard.desired_groups.get(key)) for key in keys}

    def _view(self, port: AgentPort, members: Iterable[InstanceId], desired: Group | None) -> View:
        view = View(self._world.now, desired, {}, set())
        for id in members:
            for agent in self._world.agents_of(id):
                if (since := agent.ready_since(port, within=REPORT_SECONDS)) is not None:
                    view.ready_since[id] = since
                    is_reachable = agent.alive and agent.unreachable_since is None
                    if is_reachable and since <= view.at - REPORT_SECONDS and agent.ready_reports[port][1] is None:
                        view.firmly_ready.add(id)
        return view

    def check_entry(self, entry: slots.Entry, before: Records, after: Records, views: Mapping[GroupKey, View]) -> None:
        old_groups = dict(self.groups)
        slots.apply_groups(self.groups, entry.groups)
        for record in entry.groups:
            self._check_rollback(old_groups.get(record.key), record)
        changed = [c.instance for c in entry.changes if isinstance(c, Put) and not c.instance.on_demand]
        # What is created in this entry fills a free place; it does not take that of another instance.
        known = {id: i for id, i in after.items() if id in before}
        for key, view in views.items():
            desired = view.desired
            if desired is None:
                continue
            self._check_record(after, desired)
            mine = [i for i in changed if i.key == key]
            created = [i for i in mine if i.id not in before and i.state is State.PENDING]  # not adopted ones
            leaving = [i for i in mine if i.state in LEAVING and i.cause in LIMITED and _counts(before, i.id)]
            begun = [i for i in created if _is_limited(i, after)]
            surge = desired.max_surge or (0 if desired.max_unavailable else 1)
            limit = desired.size + surge
            # What is under way was begun within older limits.
            is_busy = _is_busy(key, before)
            self._surges[key] = max(surge, self._surges.get(key, 0) if is_busy else 0)
            earlier = self._limits.get(key, 0) if is_busy else 0
            self._limits[key] = max(limit, earlier, desired.size + self._surges[key])
            if begun:
                self._check_surge(after, desired, limit)
            elif any(not _has_predecessor(i, after) for i in created):
                self._check_surge(after, desired, self._limits[key])
            for old in leaving:
                self._check_unavailable(old, after, _replacements(known, old.id), view, desired)
            # Forced expiry waits for the limits only, and goes on while a rollout is held.
            unforced = [i for i in begun if i.replaces_for is not Cause.FORCED_EXPIRY]
            self._check_fallback(old_groups.get(key), [i for i in created if i not in unforced], after, desired)
            leaving_unforced = [i for i in leaving if i.cause is not Cause.FORCED_EXPIRY]
            if unforced or leaving_unforced:
                self._check_held(key, old_groups.get(key), unforced, leaving_unforced)
            if steps := _ids((*begun, *(i for i in leaving if not is_replaced(before, known, i.id)))):
                self._check_order(before, after, view, desired, steps)

    def _check_surge(self, after: Records, desired: Group, limit: int) -> None:
        """R1"""
        existing = [i for i in after.values() if i.key == desired.key and not i.on_demand and i.state not in ENDED]
        # One that was replaced because its agent was unresponsive may recover, and then leaves because it is outdated.
        urgent = {i.replaces for i in after.values() if i.replaces is not None and i.replaces_for not in LIMITED}
        involuntary = sum(i.state in LEAVING and (i.cause not in LIMITED or i.id in urgent) for i in existing)
        involuntary += sum(_has_predecessor(i, after) and not _is_limited(i, after) for i in existing)
        if len(existing) - involuntary > limit:
            self._report("R1", f"{desired.key} has {len(existing)} VMs, {involuntary} involuntary, limit {limit}")

    def _check_unavailable(
        self, old: Instance, after: Records, replacements: list[Instance], view: View, desired: Group
    ) -> None:
        """R2"""
        if replacements and not any(i.id in view.ready_since for i in replacements):
            self._report("R2", f"{old.id} leaves for {replacements[0].id}, which is not ready")
        if old.id not in view.firmly_ready:
            return
        ready = sum(i.id in view.ready_since for i in after.values() if i.key == old.key and _is_serving(i))
        least = desired.size - desired.max_unavailable
        if ready < least:
            self._report("R2", f"{old.id} leaves voluntarily, but {ready} of {least} are ready")

    def _check_held(
        self, key: GroupKey, was: GroupRecord | None, begun: list[Instance], leaving: list[Instance]
    ) -> None:
        """R3: a halted rollout does nothing, a paused one begins nothing."""
        before, now = _current(was), _current(self.groups.get(key))
        if before is None or now is None or before.infra_hash != now.infra_hash:
            return
        if before.outcome is Outcome.HALTED and now.outcome is Outcome.HALTED:
            self._report("R3", f"the halted rollout of {key} continued: {[i.id for i in (*begun, *leaving)]}")
        if before.outcome is Outcome.PAUSED and now.outcome is Outcome.PAUSED and begun:
            self._report("R3", f"the paused rollout of {key} continued: {[i.id for i in begun]}")

    def _check_record(self, after: Records, desired: Group) -> None:
        """R3 of canaries, R8"""
        record = self.groups.get(desired.key)
        now = _current(record)
        if record is None or now is None:
            return
        is_held = record.dynamic and desired.static and not desired.overridden  # its entry in groups.jsonc is missing
        if desired.paused or is_held:
            return
        if now.outcome is Outcome.PAUSED and now.infra_hash == desired.infra_hash:
            canaries = sum(i.infra_hash in ("", now.infra_hash) for i in _capacity(after, desired.key))
            if canaries < min(desired.canary, desired.size):
                self._report("R3", f"{desired.key} is paused with {canaries} of {desired.canary} canaries")
        if record.last_complete() is None:
            return
        if now.outcome is Outcome.ROLLING and now.failures >= desired.max_failures:
            self._report("R8", f"the rollout of {desired.key} goes on after {now.failures} failures")

    def _check_fallback(self, was: GroupRecord | None, created: list[Instance], after: Records, desired: Group) -> None:
        """R7"""
        before, now = _current(was), _current(self.groups.get(desired.key))
        if was is None or before is None or now is None or not created:
            return
        if before.infra_hash != now.infra_hash or now.infra_hash != desired.infra_hash:
            return
        is_trial = desired.canary > 0 and before.resumed_at is None and now.resumed_at is None
        if not (before.outcome in HELD and now.outcome in HELD) and not (is_trial and now.outcome is Outcome.ROLLING):
            return
        earlier = [
            r
            for r in was.revisions
            if r.infra_hash != now.infra_hash
            and r.outcome is not Outcome.ROLLED_BACK
            and self._is_stored(desired.key, r.infra_hash)
        ]
        updated = [i for i in _capacity(after, desired.key) if i.infra_hash == now.infra_hash]
        has_failed = before.outcome is Outcome.HALTED and before.failures > 0
        unproven = [i.id for i in created if i.infra_hash == now.infra_hash]
        if earlier and unproven and (has_failed or _count_places(updated) > desired.canary):
            self._report("R7", f"{unproven[0]} is made from a revision whose rollout is {before.outcome.value}")
        if len(unproven) < len(created):
            self._world.count("made from an earlier revision while a rollout was held")

    def _is_stored(self, key: GroupKey, infra_hash: str) -> bool:
        """A restored backup may lack the object, or the leader ended before it was written. Then nobody knows what the
        revision is made of."""
        name = storage_keys.revision(SHARD, key, infra_hash=infra_hash, runtime_hash="any")
        return any(each.startswith(name.removesuffix("any.json")) for each in self._world.storage.contents())

    def _check_order(self, before: Records, after: Records, view: View, desired: Group, steps: set[InstanceId]) -> None:
        """R3: one step after the other where the order is serial, and none after the canaries."""
        members = [i for i in after.values() if i.key == desired.key and not i.on_demand]
        current = [i for i in members if i.state in CAPACITY and i.infra_hash == desired.infra_hash]
        if desired.order is UpdateOrder.SERIAL:
            if len(steps) > 1:
                self._report("R3", f"{desired.key} takes {len(steps)} steps at once")
            if busy := [i.id for i in members if i.state in LEAVING and i.cause in LIMITED and i.id not in steps]:
                self._report("R3", f"{desired.key} takes a step while {busy[0]} is not gone")
            for i in current:
                since = view.ready_since.get(i.id)
                if i.id in before and (since is None or since > view.at - desired.settle + REPORT_SECONDS):
                    self._report("R3", f"{desired.key} takes a step while {i.id} has not settled")
        now = _current(self.groups.get(desired.key))
        pauses = desired.canary > 0 and now is not None and now.resumed_at is None
        # Where all are of this revision, a step only leads to a better offer.
        outdated = any(i.state in CAPACITY and i.infra_hash != desired.infra_hash for i in members)
        places = _count_places(current)
        if pauses and outdated and places > desired.canary and steps & _ids(current):
            self._report("R3", f"{desired.key} has {places} instances of a revision with {desired.canary} canaries")

    def _check_rollback(self, was: GroupRecord | None, now: GroupRecord) -> None:
        """R4"""
        if was is None or len(now.revisions) < 2 or now.revisions[-2].outcome is not Outcome.ROLLED_BACK:
            return
        if _current(was) is None or len(was.revisions) == len(now.revisions) or was.revisions[-1] == now.revisions[-2]:
            return
        target = was.last_complete()
        if target is None or now.revisions[-1].infra_hash != target.infra_hash:
            self._report("R4", f"{now.key} was rolled back to a revision that is not the last complete one")
        else:
            self._world.count("rolled back to the last complete revision")

    def check_target(self, provider_id: ProviderId) -> None:
        """R5: a VM is registered with a load balancer."""
        vm = next((vm for vm in self._world.cloud.vms() if vm.provider_id == provider_id), None)
        agents = self._world.agents_of(vm.id) if vm is not None else []  # that of a duplicate VM may have reported
        ends = [until for agent in agents for _, until in agent.ready_reports.values()]
        if vm is not None and not any(end is None or end >= self._world.now - TARGET_CALL_SECONDS for end in ends):
            self._report("R5", f"{provider_id} is registered with a load balancer, but is not ready")
        self._world.count("registered with a load balancer")

    def check_files(self, id: InstanceId, contents: Mapping[str, bytes], port: AgentPort) -> None:
        """R6: a leader sends files to an instance."""
        self._check_generation(id, port, "files", contents.get("generation", b"").decode())

    def check_checks(self, id: InstanceId, checks: agent_pb2.CheckConfig, port: AgentPort) -> None:
        """R6: a leader sends checks to an agent."""
        for check in checks.checks:
            self._check_generation(id, port, "checks", check.name.removeprefix(check_name("")))

    def _check_generation(self, id: InstanceId, port: AgentPort, what: str, found: str) -> None:
        instance = port.lead.shard.instances.get(id)
        current = port.lead.shard.desired_groups.get(instance.key) if instance is not None else None
        if instance is None or current is None:
            return
        # The groups of a forecast have files of their own, and no generations.
        wanted = self._generations.get((instance.key, instance.infra_hash))
        if wanted is not None and found != str(wanted) and self._is_stored(instance.key, instance.infra_hash):
            self._report("R6", f"{id} of generation {wanted} receives {what} of generation {found}")
        is_earlier = instance.infra_hash != current.infra_hash
        self._world.count(f"{what} sent to an instance{' of an earlier revision' if is_earlier else ''}")

    def _report(self, rule: str, text: str) -> None:
        self._world.violation(f"{rule}: {text}")


def _current(record: GroupRecord | None) -> Revision | None:
    return record.current if record is not None else None


def _ids(instances: Iterable[Instance]) -> set[InstanceId]:
    return {i.id for i in instances}


def _capacity(records: Records, key: GroupKey) -> list[Instance]:
    return [i for i in records.values() if i.key == key and i.counts]


def _count_places(instances: list[Instance]) -> int:
    """A canary that expires and the canary that replaces it share a place."""
    return len(instances) - len({i.replaces for i in instances} & _ids(instances))


def _counts(records: Records, id: InstanceId) -> bool:
    return id in records and records[id].counts


def _is_busy(key: GroupKey, records: Records) -> bool:
    """Work within the limits is under way."""
    mine = [i for i in records.values() if i.key == key]
    return any((i.state in LEAVING and i.cause in LIMITED) or _is_limited(i, records) for i in mine)


def _has_predecessor(instance: Instance, after: Records) -> bool:
    """It replaces an instance that is still there."""
    return instance.counts and instance.replaces is not None and _counts(after, instance.replaces)


def _is_limited(instance: Instance, after: Records) -> bool:
    """As far as records tell: a hint and a notice of the provider's look alike, so those are excused."""
    return _has_predecessor(instance, after) and instance.replaces_for in LIMITED


def _replacements(after: Records, id: InstanceId) -> list[Instance]:
    return [i for i in after.values() if i.replaces == id and i.counts]


def is_replaced(before: Records, after: Records, id: InstanceId) -> bool:
    """Whether it leaves for its replacement, which may take the place of that one's predecessor in the same decision."""
    linked = {i.id for i in _replacements(before, id)}
    return bool(_replacements(after, id)) or any(after[each].counts for each in linked & after.keys())


def _is_serving(instance: Instance) -> bool:
    return instance.state is State.RUNNING and instance.counts and not instance.suspect
