"""VMs as a provider's listing shows them."""

from dataclasses import dataclass

from nstance.model.events import Credential, VmState
from nstance.model.ids import ClusterId, GroupName, InstanceId, ProviderId, ShardId, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVm:
    """What a listing shows, without the state, for which each provider has words of its own."""

    id: InstanceId
    provider_id: ProviderId
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""
    # From its tags; None where a tag is missing. Only a VM whose tags are complete may ever be collected as an orphan.
    cluster: ClusterId | None = None
    shard: ShardId | None = None
    tenant: TenantId | None = None
    group: GroupName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVm(ListedVm):
    """In terms that decisions understand."""

    state: VmState  # never ABSENT: a listing does not show such a VM


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity(Credential):
    """The contents of an agent's certificate, which was issued to this instance."""

    id: InstanceId
    tenant: TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownVm:
    """A VM with all our tags and without a record. It is held: neither counted nor deleted."""

    vm: SeenVm
    first_seen: float  # by this leader
    agent: AgentIdentity | None = None  # presented by its agent in this term

    @property
    def is_running(self) -> bool:
        return self.vm.state is VmState.RUNNING
