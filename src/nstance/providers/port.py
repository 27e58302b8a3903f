"""The door to a cloud.

A provider makes, shows and deletes VMs; it decides nothing. The traps: a create can succeed without an answer, so it is
idempotent by instance ID; listings lag behind creation, so a missing VM is news only after it was seen once; and a
listing is complete or an error, because a quiet half would read as a catastrophe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ProviderId, ShardId, TenantId


class Status(Enum):
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    DELETED = "deleted"
    REPAIRING = "repairing"
    UNKNOWN = "unknown"  # never read as unhealthy


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose VMs these are. Part of every tag and every listing: two clusters may share an account."""

    cluster: ClusterId
    shard: ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """Everything a VM is made of, rendered. Two calls with the same ID carry the same request."""

    id: InstanceId
    tenant: TenantId
    group: GroupName
    kind: Kind
    template: str
    created: float
    instance_type: str = ""
    arch: str = ""
    subnet: str = ""
    args: Mapping[str, object] = field(default_factory=dict)
    userdata: bytes = b""
    # What providers without userdata (process, tmux) hand to the agent themselves:
    nonce: str = field(default="", repr=False)
    ca_certificate: str = ""
    registration_addr: str = ""
    agent_addr: str = ""
    report_interval: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vm:
    """One VM as the provider shows it."""

    id: InstanceId
    provider_id: ProviderId
    status: Status
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""
    # From its tags; None where a tag is missing. Only a VM whose tags are complete may ever be collected as an orphan.
    cluster: ClusterId | None = None
    shard: ShardId | None = None
    tenant: TenantId | None = None
    group: GroupName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    consistent: bool = False  # "gone" is the truth as soon as create has answered
    userdata: bool = True  # the VM reads userdata; otherwise a URL in it is never fetched
    leader_network: bool = False
    load_balancers: bool = False
    images: bool = False
    console: bool = False
    subnet_capacity: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageQuery:
    filters: Mapping[str, Sequence[str]]
    owners: Sequence[str] = ()
    sort: str = ""
    order: str = "desc"


class Provider(Protocol):
    """Any call may raise Throttled, Unavailable and Refused. Deadlines are the caller's (`asyncio.timeout`); a create or
    delete that timed out or was cancelled counts as Unknown."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def create(self, request: CreateRequest) -> Vm:
        """Make the VM, or return the one that this ID already has, whatever its state. An ID that was deleted is
        Refused, never made again. Raises NoCapacity, Unknown."""
        ...

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> Status:
        """Begin to delete the VM; one that is gone already is success. Returns DELETED only when the provider positively
        knows that it runs no more, DELETING otherwise. Raises Unknown."""
        ...

    async def get(self, id: InstanceId, provider_id: ProviderId | None) -> Vm:
        """The VM as it is now. Raises Gone; just after a create or delete that may be a lie."""
        ...

    async def list(self) -> Sequence[Vm]:
        """All VMs that carry this scope's ownership, cluster and shard tags, each status included: complete, or an
        error. VMs created or deleted just now may be missing or still there."""
        ...

    async def console(self, id: InstanceId, provider_id: ProviderId | None) -> str:
        """The VM's console output, newest 64 KiB, or empty. Raises Gone."""
        ...

    async def subnet_capacity(self, subnet: str) -> int | None:
        """Free addresses in a subnet, or None if the provider cannot tell."""
        ...

    async def find_image(self, query: ImageQuery) -> str:
        """The provider's ID of the newest image that fits. Raises Gone if none does."""
        ...

    async def assign_leader_network(self) -> None:
        """Move the shard's fixed address to this server. Repeating it is harmless."""
        ...

    async def release_leader_network(self) -> None:
        """Give the address back if this server has it; one that has moved on stays where it is."""
        ...

    async def load_balancer_members(self, name: str) -> Sequence[ProviderId]: ...

    async def load_balancer_register(self, name: str, provider_id: ProviderId) -> None: ...

    async def load_balancer_deregister(self, name: str, provider_id: ProviderId) -> None:
        """Not a member afterwards; one that was none is success."""
        ...

    async def close(self) -> None:
        """Release connections. VMs stay."""
        ...
