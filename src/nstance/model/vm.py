"""A VM as a listing shows it, in the words of decisions. Whoever lists translates the provider's status."""

from dataclasses import dataclass

from nstance.model.events import VmState
from nstance.model.ids import ClusterId, GroupName, InstanceId, ProviderId, ShardId, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVm:
    id: InstanceId
    provider_id: ProviderId
    state: VmState  # never ABSENT: that is what a listing does not show
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""
    # From its tags; None where a tag is missing.
    cluster: ClusterId | None = None
    shard: ShardId | None = None
    tenant: TenantId | None = None
    group: GroupName | None = None
