"""VMs with this shard's tags that have no record, as listed in this term.

They are held: shown to people, and adopted into their group as soon as it lacks an instance and their agent has presented
its certificate. An agent may connect before the listing that shows its VM, so its identity is kept for a while.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nstance.model.events import VmState
from nstance.model.ids import GroupKey, GroupName, InstanceId, ProviderId, TenantId
from nstance.model.vm import AgentIdentity, SeenVm, UnknownVm

MAX_PRESENTED = 10_000
SHOWN_IN_EVENT = 5


class UnknownVms:
    def __init__(self) -> None:
        self._vms: dict[ProviderId, UnknownVm] = {}
        self._presented: dict[InstanceId, AgentIdentity] = {}

    def __len__(self) -> int:
        return len(self._vms)

    def all(self) -> list[UnknownVm]:
        """Sorted by instance ID."""
        return sorted(self._vms.values(), key=lambda u: (u.vm.id, u.vm.provider_id))

    def of(self, key: GroupKey) -> tuple[UnknownVm, ...]:
        return tuple(u for u in self._vms.values() if key_of(u.vm) == key) if self._vms else ()

    def update(self, vms: Iterable[SeenVm], now: float) -> dict[GroupKey, list[UnknownVm]]:
        """Take a complete listing over. Returns the new ones by group."""
        before = self._vms
        self._vms = {}
        for vm in vms:
            known = before.get(vm.provider_id)
            self._vms[vm.provider_id] = UnknownVm(
                vm=vm, first_seen=now if known is None else known.first_seen, agent=self._agent_of(vm)
            )
        new: dict[GroupKey, list[UnknownVm]] = {}
        for unknown in self.all():
            if unknown.vm.provider_id not in before:
                new.setdefault(key_of(unknown.vm), []).append(unknown)
        return new

    def present(self, agent: AgentIdentity) -> GroupKey | None:
        """An agent without a record has presented its certificate. Returns the group of its VM, if it was listed."""
        self._presented.pop(agent.id, None)
        while len(self._presented) >= MAX_PRESENTED:
            self._presented.pop(next(iter(self._presented)))
        self._presented[agent.id] = agent
        key = None
        for provider_id, unknown in self._vms.items():
            if (unknown.vm.id, unknown.vm.tenant) == (agent.id, agent.tenant):
                self._vms[provider_id] = replace(unknown, agent=agent)
                key = key_of(unknown.vm)
        return key

    def forget(self, id: InstanceId) -> None:
        """The instance has a record now."""
        if self._vms:
            self._vms = {p: u for p, u in self._vms.items() if u.vm.id != id}
        self._presented.pop(id, None)

    def _agent_of(self, vm: SeenVm) -> AgentIdentity | None:
        agent = self._presented.get(vm.id)
        return agent if agent is not None and agent.tenant == vm.tenant else None


def key_of(vm: SeenVm) -> GroupKey:
    return GroupKey(TenantId(vm.tenant or ""), GroupName(vm.group or ""))


def describe(new: Sequence[UnknownVm]) -> str:
    """The text of their event."""
    named = ", ".join(u.vm.id for u in new[:SHOWN_IN_EVENT])
    more = f" and {len(new) - SHOWN_IN_EVENT} more" if len(new) > SHOWN_IN_EVENT else ""
    return f"unknown VMs held, they have no record: {named}{more}; adopt or release them"


def why_held(unknown: UnknownVm, *, configured: bool, room: bool, too_many: bool) -> str:
    """Why it is neither adopted nor deleted, for people."""
    if too_many:
        return "too many VMs are unknown at once: their deletion waits for a person"
    if not configured:
        return "its group is not configured"
    if unknown.vm.state is not VmState.RUNNING:
        return "it is not running"
    if unknown.agent is None:
        return "its agent has not presented a valid certificate"
    return "it is adopted next" if room else "its group is at its size: scale it up to adopt the VM, or release it"
