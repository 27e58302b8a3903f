"""What the services of a term work with. All of it is made together, when the term begins (`leader.assembly`)."""

from collections.abc import Callable
from dataclasses import dataclass

from nstance.server.cloud.load_balancers import LoadBalancers
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.blocked_groups import BlockedGroups
from nstance.server.leader.readiness import Readiness
from nstance.server.leader.revision_store import RevisionStore
from nstance.server.leader.step_times import StepTimes
from nstance.server.leader.supplies import Supplies
from nstance.server.leader.vm_requests import VmRequests
from nstance.server.liveness.connected_agents import ConnectedAgents
from nstance.server.state.instance_traces import InstanceTraces
from nstance.server.state.shard import Shard
from nstance.server.workload.file_sets import FileSets


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContext:
    """A shard, its agents and its configuration."""

    shard: Shard
    active_config: ActiveConfig
    agents: ConnectedAgents
    readiness: Readiness
    issuer: Issuer
    traces: InstanceTraces | None  # if they are exported

    @property
    def configuration(self) -> Configuration:
        return self.active_config.configuration

    @property
    def agent_ttl(self) -> float:
        return self.active_config.shard_settings.identity.agent_ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class TermContext(ShardContext):
    """All that ports can be made from. Only code that makes ports sees it; a service gets what it needs."""

    vm_requests: VmRequests
    file_sets: FileSets
    supplies: Supplies
    load_balancers: LoadBalancers
    blocked_groups: BlockedGroups
    revisions: RevisionStore
    step_times: StepTimes
    provider_rate: Callable[[], float]  # calls per second that a throttling provider gets; 0: not limited
