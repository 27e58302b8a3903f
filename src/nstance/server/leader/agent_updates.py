"""What connected agents have to be told because a decision or the configuration changed something of theirs."""

from nstance.config.resolve import Resolved
from nstance.model.ids import GroupKey, InstanceId
from nstance.model.instance import ENDED, Remove, State
from nstance.server.config.active_config import ConfigChange
from nstance.server.leader.vm_requests import VmRequests
from nstance.server.liveness.connected_agents import ConnectedAgents
from nstance.server.state.commits import Committed
from nstance.server.state.shard_state import ShardState
from nstance.server.workload import rendering


class AgentUpdates:
    def __init__(self, state: ShardState, agents: ConnectedAgents, vm_requests: VmRequests) -> None:
        self._state = state
        self._agents = agents
        self._vm_requests = vm_requests
        self._shared = rendering.shared(vm_requests.context)

    def on_config_change(self, change: ConfigChange) -> None:
        before, self._shared = self._shared, rendering.shared(self._vm_requests.context)
        affected = self._affected(change) if before == self._shared else None
        self._agents.nudge(affected)

    def _affected(self, change: ConfigChange) -> list[InstanceId]:
        """Instances whose keys or files may have changed. Waking an agent costs more than comparing its group, and most
        changes are of one group among hundreds."""
        before, after = change.before.groups, change.after.groups
        affected = [id for key in after if key not in before for id in self._state.members(key)]
        for key, old in before.items():
            new = after.get(key)
            if new is not old and _files_hash(old) != _files_hash(new):
                # An instance of the revision that was current until now keeps its files.
                members = self._state.members(key).values()
                affected += [m.id for m in members if _files_hash(self._vm_requests.resolve(m)) != _files_hash(old)]
        return affected

    def on_revision_read(self, key: GroupKey) -> None:
        """Nothing was sent to the instances of that revision until now."""
        self._agents.nudge(list(self._state.members(key)))

    def on_committed(self, committed: Committed) -> None:
        """New addresses mean new files; agents of deleted instances are disconnected."""
        for change in committed.changes:
            if isinstance(change, Remove):
                self._agents.drop(change.id)
                continue
            instance, before = change.instance, committed.before.get(change.instance.id)
            if instance.state is State.DELETING or instance.state in ENDED:
                self._agents.drop(instance.id)
            elif before is not None and (before.ip4, before.ip6, before.hostname) != (
                instance.ip4,
                instance.ip6,
                instance.hostname,
            ):
                self._agents.nudge([instance.id])


def _files_hash(resolved: Resolved | None) -> str | None:
    return resolved.group.runtime_hash if resolved is not None else None
