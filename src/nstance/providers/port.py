"""The port to a cloud, split into capabilities.

Every provider implements `Instances`. It implements the other protocols only as far as its cloud can do that;
`capabilities_of` is the one place that asks. A provider creates, shows and deletes VMs; it decides nothing. The traps:
a create can succeed although its answer is lost, so it is idempotent by instance ID; listings lag behind creates, so an
absent VM means something only after it was seen once; and a listing is complete or an error, because a silently partial
one would look like a mass loss of VMs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ProviderId, ShardId, TenantId
from nstance.model.vm import ListedVm

MAX_CONSOLE_BYTES = 64 * 1024


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
    """The owner of the VMs. Part of every tag and every listing, because two clusters may share an account."""

    cluster: ClusterId
    shard: ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """All that a VM is created from, rendered. Two calls with the same ID carry the same request, but for signatures of URLs
    in the userdata, which end and are made again."""

    id: InstanceId
    tenant: TenantId
    group: GroupName
    kind: Kind
    template: str
    created: float
    market: str = ""  # "spot" or "on-demand"; empty: as `args` say
    instance_type: str = ""
    arch: str = ""
    subnet: str = ""
    args: Mapping[str, object] = field(default_factory=dict)
    userdata: bytes = b""
    unsigned_userdata: bytes | None = None  # the same without signatures; None: there are none
    # For providers without userdata (process, tmux), which pass this to the agent themselves:
    nonce: str = field(default="", repr=False)
    ca_certificate: str = ""
    registration_addr: str = ""
    agent_addr: str = ""
    report_interval: float = 60.0
    may_exist: bool = False  # an earlier call may have created it: the provider looks before it creates


@dataclass(frozen=True, slots=True, kw_only=True)
class Vm(ListedVm):
    """One VM as the provider shows it."""

    status: Status
    end_reason: str = ""  # why it stopped or was deleted, in the provider's words
    problem: str = ""  # why it stands still although it is neither stopped nor deleted


@dataclass(frozen=True, slots=True)
class FixedAddress:
    """The leader address as the configuration names it."""

    ip4: str = ""
    ip6: str = ""
    interface_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How a provider's VMs behave."""

    is_consistent: bool = False  # "not found" is the truth as soon as create has answered
    drains_targets: bool = False  # a target keeps its connections for a while after it is deregistered
    reads_userdata: bool = True  # otherwise a URL in the userdata is never fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageQuery:
    filters: Mapping[str, Sequence[str]]
    owners: Sequence[str] = ()
    sort: str = ""
    order: str = "desc"
    parameter: str = ""  # the name of a public parameter that holds the image's ID, instead of filters


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An HTTP service that keeps the members of a load balancer which no cloud provides."""

    url: str
    secret: str = ""  # its name in the secret store; empty: calls carry no credentials
    auth: str = "hmac"  # how the secret is used: "hmac" signs each call, "token" sends it
    ca_file: str = ""
    timeout: float = 5.0


@dataclass(frozen=True, slots=True)
class LoadBalancer:
    """A load balancer of the configuration, and where its targets are registered."""

    name: str
    target_group_arns: tuple[str, ...] = ()
    instance_group_name: str = ""
    webhook: Webhook | None = None
    file: str = ""  # the path of a list of members
    port: int = 0  # of the members, for webhook and file


class Instances(Protocol):
    """VMs. Any call of any capability may raise ThrottledError, UnavailableError and PermanentError. Deadlines are the
    caller's (`asyncio.timeout`); a create or delete that timed out or was cancelled has an unknown outcome."""

    @property
    def traits(self) -> Traits: ...

    async def create(self, request: CreateRequest) -> Vm:
        """Create the VM, or return the one that this ID already has, whatever its state. An ID that was deleted is a
        PermanentError, never created again. Raises NoCapacityError, UnknownOutcomeError."""
        ...

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> Status:
        """Begin to delete the VM; an absent one is success. Returns DELETED only when the provider positively knows that
        the VM no longer runs, DELETING otherwise. Raises UnknownOutcomeError."""
        ...

    async def get(self, id: InstanceId, provider_id: ProviderId | None) -> Vm:
        """The VM as it is now. Raises NotFoundError, which just after a create or delete may be wrong."""
        ...

    async def list(self) -> Sequence[Vm]:
        """All VMs that carry this scope's ownership, cluster and shard tags, in any status: complete, or an error. VMs
        created or deleted just now may be missing or still there."""
        ...

    async def close(self) -> None:
        """Release connections. VMs stay."""
        ...


@runtime_checkable
class Folder(Protocol):
    """A provider whose VMs are in a folder of this machine."""

    async def open_folder(self, known: Collection[ProviderId]) -> None:
        """Called before the first listing of a term, until it succeeds. A new folder is made only if none of the `known`
        VMs is in one. Every other call raises OutOfReachError in a folder that was never made: its VMs are elsewhere."""
        ...


@runtime_checkable
class LoadBalancers(Protocol):
    async def list_targets(self, balancer: LoadBalancer) -> Mapping[ProviderId, bool]:
        """All targets. False: only in some of the places where the balancer registers targets."""
        ...

    async def is_draining(self, balancer: LoadBalancer, provider_id: ProviderId) -> bool:
        """Whether it is no target any more and still has connections from before."""
        ...

    async def register_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None: ...

    async def deregister_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        """Not a target afterwards; deregistering what is no target is success."""
        ...


@runtime_checkable
class Images(Protocol):
    async def find_image(self, query: ImageQuery) -> str:
        """The provider's ID of the newest matching image. Raises NotFoundError."""
        ...


@runtime_checkable
class LeaderAddress(Protocol):
    async def assign_leader_address(self) -> None:
        """Move the shard's fixed address to this server. Repeating it is harmless."""
        ...

    async def release_leader_address(self) -> None:
        """Release the address if this server has it; otherwise do nothing."""
        ...


@runtime_checkable
class SubnetCapacity(Protocol):
    async def free_addresses(self, subnet: str) -> int | None:
        """Free addresses in a subnet, or None if the provider does not know."""
        ...


@runtime_checkable
class Alarms(Protocol):
    """A provider that notices problems between calls, such as credentials that cannot be refreshed."""

    def on_alarm(self, report: Callable[[str], None]) -> None:
        """From now on each problem is reported to this function only."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLaunch:
    """A group as its instances would be created, with its arguments rendered."""

    template: str
    instance_types: Sequence[str]
    markets: Sequence[str]
    subnets: Sequence[str]
    args: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudPlan:
    """What a configuration asks of the cloud."""

    launches: Sequence[PlannedLaunch]
    subnet_pools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    zone: str = ""  # where the subnets are expected; empty: anywhere


@dataclass(frozen=True, slots=True)
class Fault:
    """What would fail, and where in the configuration it is said."""

    path: tuple[str | int, ...]
    text: str


@runtime_checkable
class Preflight(Protocol):
    async def preflight(self, plan: CloudPlan) -> Sequence[Fault]:
        """All that would fail when instances are created and deleted by this plan, as far as the cloud tells without
        changing anything. A call that fails is a fault of its own: it says nothing about what it asked for."""
        ...


@runtime_checkable
class Console(Protocol):
    async def console_output(self, id: InstanceId, provider_id: ProviderId | None) -> str:
        """The newest `MAX_CONSOLE_BYTES` of the VM's console output, or empty. Raises NotFoundError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider can do besides instances; None where it cannot."""

    load_balancers: LoadBalancers | None
    images: Images | None
    leader_address: LeaderAddress | None
    subnet_capacity: SubnetCapacity | None
    console: Console | None
    alarms: Alarms | None = None
    preflight: Preflight | None = None
    folder: Folder | None = None


def capabilities_of(provider: Instances) -> Capabilities:
    return Capabilities(
        load_balancers=provider if isinstance(provider, LoadBalancers) else None,
        images=provider if isinstance(provider, Images) else None,
        leader_address=provider if isinstance(provider, LeaderAddress) else None,
        subnet_capacity=provider if isinstance(provider, SubnetCapacity) else None,
        console=provider if isinstance(provider, Console) else None,
        alarms=provider if isinstance(provider, Alarms) else None,
        preflight=provider if isinstance(provider, Preflight) else None,
        folder=provider if isinstance(provider, Folder) else None,
    )
