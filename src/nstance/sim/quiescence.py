"""What keeps a simulated shard from rest, after the faults have stopped."""

from typing import TYPE_CHECKING

from nstance.model.events import NoticeKind
from nstance.model.group import Group
from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, State
from nstance.model.observation import Observation
from nstance.model.rollout import Outcome
from nstance.providers.port import Status
from nstance.server.leader.context import TermContext
from nstance.sim import desired_groups

if TYPE_CHECKING:
    from nstance.sim.world import World

OPEN = frozenset({State.PENDING, State.STARTING, State.DRAINING, State.DELETING})


def find_unrest(world: "World") -> str:
    """What keeps the shard from rest; empty if nothing does."""
    auditor = world.auditor
    leaders = [s for s in world.servers if s.leading and s.lead is not None]
    if len(leaders) != 1:
        return f"{len(leaders)} servers lead"
    lead = leaders[0].lead
    assert lead is not None
    if lead.configuration.version != world.config_version():
        return "the leader does not know the newest configuration"
    if lead.shard.instances != auditor.fold or lead.shard.group_records != auditor.rollouts.groups:
        return "the leader's records differ from the journal"
    if lead.shard.mass_absence or not lead.shard.listed:
        return "the provider's listing is not believed"
    if busy := next((id for id, f in lead.shard.facts.items() if f.calls.creating or f.calls.deleting), None):
        return f"a call for {busy} is under way"  # a throttled one is made when its turn comes, needed or not
    for name, desired in world.desired_groups.groups.items():
        resolved = lead.configuration.groups[desired_groups.key(name)]
        members = [m for m in auditor.fold.values() if m.key == resolved.group.key]
        counting = [m for m in members if m.counts]
        if len(counting) != desired.size:
            return f"{name} has {len(counting)} of {desired.size}"
        if any(m.infra_hash != resolved.group.infra_hash for m in counting):
            return f"{name} has members with an old template"
        if unready := _unready(world, lead, counting):
            return f"{unready} is not ready"
        kept = auditor.rollouts.groups.get(resolved.group.key)
        if counting and (kept is None or kept.current is None or kept.current.outcome is not Outcome.COMPLETE):
            return f"the rollout of {name} is not complete"
        if missing := _unbalanced(world, resolved.group, counting):
            return f"{missing} is not registered with its load balancer"
    for record in auditor.fold.values():
        if record.state is State.RUNNING and not any(
            a.line is not None and a.line.door.lead is lead for a in world.agents_of(record.id)
        ):
            return f"the agent of {record.id} is not connected to the leader"
        if record.state in OPEN or record.duplicate_vm is not None or (record.suspect and record.counts):
            return f"{record.id} is {record.state.value}, suspect {record.suspect}, double {record.duplicate_vm}"
        facts = lead.shard.facts.get(record.id)
        if record.state is State.RUNNING and (facts is None or not facts.agent.ready):
            return f"{record.id} is not ready"
        if record.state is State.RUNNING and facts is not None and _is_to_go(record, facts):
            return f"{record.id} is to go"  # its group may back off: nothing is under way until that is over
    return _leaks(world)


def _unready(world: "World", lead: TermContext, members: list[Instance]) -> InstanceId | None:
    for m in members:
        facts = lead.shard.facts.get(m.id)
        if facts is None or not facts.agent.ready or not any(a.is_ready for a in world.agents_of(m.id)):
            return m.id
    return None


def _unbalanced(world: "World", group: Group, members: list[Instance]) -> InstanceId | None:
    for name in group.load_balancers:
        there = world.cloud.load_balancers.get(name, [])
        if missing := next((m.id for m in members if m.provider_id not in there), None):
            return missing
    return None


def _leaks(world: "World") -> str:
    auditor, leader = world.auditor, world.leader()
    expected = {m.provider_id for m in auditor.fold.values() if m.state is State.RUNNING}
    shard = leader.lead.shard if leader is not None and leader.lead is not None else None
    held = {u.vm.provider_id for u in shard.unknown.all()} if shard is not None else set()
    if shard is not None and shard.policy.delete_unknown and not auditor.too_many_unknown():
        held = set()  # they are to be deleted
    spared = auditor.untouchable.keys() | auditor.anybodys
    for vm in world.cloud.vms():
        if vm.status is Status.DELETED or vm.id in spared:
            continue
        if vm.provider_id in held and (vm.id in auditor.lost or vm.id in auditor.planted):
            continue
        if vm.provider_id not in expected:
            return f"the VM {vm.provider_id} of {vm.id} is {vm.status.value}, and no record wants it"
        if vm.status is not Status.RUNNING:
            return f"the VM {vm.provider_id} of {vm.id} is {vm.status.value}"
        expected.discard(vm.provider_id)
    expected -= {m.provider_id for m in auditor.fold.values() if m.id in spared}
    return f"there is no VM {sorted(map(str, expected))[0]}" if expected else ""


def _is_to_go(record: Instance, facts: Observation) -> bool:
    """Somebody asked for another one in its place, or its VM ends soon. Hints are no matter of on-demand instances."""
    if record.on_demand and facts.agent.notice is NoticeKind.REBALANCE:
        return False
    return record.replace_wanted or facts.agent.notice is not None
