"""What keeps a simulated shard from rest after the faults have stopped: among others, a VM that was leaked."""

from typing import TYPE_CHECKING

from nstance.core.inventory import UNKNOWN_AT_LEAST, UNKNOWN_SHARE
from nstance.core.offers import better_pairs
from nstance.model.events import NoticeKind
from nstance.model.group import Preference
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
    """What keeps the shard from rest; empty if it is at rest."""
    if world.now < world.clones_until:
        return "two agents use one identity"
    leads = [s.lead for s in world.servers if s.leading and s.lead is not None]
    if len(leads) != 1:
        return f"{len(leads)} servers lead"
    (lead,) = leads
    auditor, shard = world.auditor, lead.shard
    if lead.configuration.version != world.config_version():
        return "the leader does not have the newest configuration"
    if shard.instances != auditor.records or shard.group_records != auditor.rollouts.groups:
        return "the leader's records differ from the journal"
    if shard.mass_absence or not shard.listed:
        return "the provider's listing is not believed"
    if busy := next((id for id, o in shard.facts.items() if o.calls.creating or o.calls.deleting), None):
        return f"a call for {busy} is under way"  # a throttled one is made when its turn comes, needed or not
    for name in world.desired_groups.groups:
        if unrest := _find_group_unrest(world, lead, name):
            return unrest
    for record in auditor.records.values():
        if unrest := _find_record_unrest(world, lead, record):
            return unrest
    return _find_leak(world, lead)


def _find_group_unrest(world: "World", lead: TermContext, name: str) -> str:
    group, size = lead.configuration.groups[desired_groups.key(name)].group, world.desired_groups.groups[name].size
    counting = [m for m in world.auditor.members(group.key) if m.counts]
    if len(counting) != size:
        return f"{name} has {len(counting)} of {size}"
    if any(m.infra_hash != group.infra_hash for m in counting):
        return f"{name} has members with an old template"
    if group.prefer is Preference.STRICT and (m := next((m for m in counting if better_pairs(group, m)), None)):
        return f"{m.id} is not in the preferred offer of {name}"
    for m in counting:
        observation = lead.shard.facts.get(m.id)
        if observation is None or not observation.agent.ready or not any(a.is_ready for a in world.agents_of(m.id)):
            return f"{m.id} is not ready"
    record = world.auditor.rollouts.groups.get(group.key)
    if counting and (record is None or record.current is None or record.current.outcome is not Outcome.COMPLETE):
        return f"the rollout of {name} is not complete"
    for balancer in group.load_balancers:
        targets = world.cloud.load_balancers.get(balancer, [])
        if missing := next((m.id for m in counting if m.provider_id not in targets), None):
            return f"{missing} is not registered with its load balancer"
    return ""


def _find_record_unrest(world: "World", lead: TermContext, record: Instance) -> str:
    if record.state in OPEN or record.duplicate_vm is not None or (record.suspect and record.counts):
        return f"{record.id} is {record.state.value}, suspect {record.suspect}, duplicate VM {record.duplicate_vm}"
    if record.state is not State.RUNNING:
        return ""
    connections = (a.connection for a in world.agents_of(record.id))
    if not any(c is not None and c.port.lead is lead for c in connections):
        return f"the agent of {record.id} is not connected to the leader"
    observation = lead.shard.facts.get(record.id)
    if observation is None or not observation.agent.ready:
        return f"{record.id} is not ready"
    if _must_leave(record, observation):
        return f"{record.id} is to go"  # its group may back off: nothing is under way until that is over
    return ""


def _are_too_many_unknown(world: "World") -> bool:
    """Whether the deletion of unknown VMs waits for a person."""
    ours = [vm for vm in world.cloud.vms() if (vm.cluster, vm.shard) == (desired_groups.CLUSTER, desired_groups.SHARD)]
    unknown = sum(vm.id not in world.auditor.records and vm.status is not Status.DELETED for vm in ours)
    return unknown > max(UNKNOWN_AT_LEAST, UNKNOWN_SHARE * len(ours))


def _must_leave(record: Instance, observation: Observation) -> bool:
    """Its replacement was requested, or its VM ends soon. Rebalance hints do not concern on-demand instances."""
    if record.on_demand and observation.agent.notice is NoticeKind.REBALANCE:
        return False
    return record.replace_wanted or observation.agent.notice is not None


def _find_leak(world: "World", lead: TermContext) -> str:
    auditor, shard = world.auditor, lead.shard
    expected = {m.provider_id for m in auditor.records.values() if m.state is State.RUNNING}
    held = {u.vm.provider_id for u in shard.unknown.all()}
    if shard.policy.delete_unknown and not _are_too_many_unknown(world):
        held = set()  # they are to be deleted
    spared = auditor.protected.keys() | auditor.deletable
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
    expected -= {m.provider_id for m in auditor.records.values() if m.id in spared}
    return f"there is no VM {sorted(map(str, expected))[0]}" if expected else ""
