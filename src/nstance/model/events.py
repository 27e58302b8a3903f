"""What can happen to a group. Everything that reaches a decision is one of these values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nstance.model.ids import InstanceId, ProviderId
from nstance.model.offer import CapacityScope


class VmState(Enum):
    """What a provider's status means for us."""

    UNKNOWN = "unknown"  # not asked, no answer, or an answer without meaning: never a reason to act
    RUNNING = "running"
    DOWN = "down"  # the provider shows it and it does not run: stopping, stopped, suspended, deleting
    DELETED = "deleted"  # the provider says explicitly that it no longer exists
    ABSENT = "absent"  # the provider does not know it; shortly after a create or delete that may be wrong


class Failure(Enum):
    """Why a create or delete failed, named by what follows from it."""

    NO_CAPACITY = "no-capacity"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown-outcome"
    UNSENT = "unsent"  # no longer needed when its turn came: the provider was not called
    SKIPPED = "skipped"  # its offer was refused to another instance meanwhile: the provider was not called
    STALE = "stale"  # the request cannot be repeated byte by byte, and the provider does not know its VM


class NoticeKind(Enum):
    SPOT = "spot-termination"
    REBALANCE = "spot-rebalance"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class _InstanceEvent:
    id: InstanceId


@dataclass(frozen=True, slots=True)
class _InstanceRequest:
    id: InstanceId
    by: str = ""  # the caller, for the event log


@dataclass(frozen=True, slots=True)
class VmCreated:
    id: InstanceId
    provider_id: ProviderId
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""
    seen: bool = False  # from now on the provider is believed when it says "gone"


@dataclass(frozen=True, slots=True)
class VmCreateFailed:
    id: InstanceId
    failure: Failure
    message: str
    scope: CapacityScope | None = None  # what the failure says something about; None: nothing about the offer


@dataclass(frozen=True, slots=True)
class VmDeleted:
    id: InstanceId
    final: bool  # the provider confirms the end; otherwise it only accepted the request


@dataclass(frozen=True, slots=True)
class VmDeleteFailed:
    id: InstanceId
    message: str


@dataclass(frozen=True, slots=True)
class VmChecked:
    """The provider's status of a VM, from a single call or a listing. UNKNOWN without a provider ID: the call failed; with
    one: the VM exists and its status has no meaning for us. `asked`: when the call was made, if it may have taken long."""

    id: InstanceId
    state: VmState
    provider_id: ProviderId | None = None
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""
    asked: float | None = None


class VmMissingFromListing(_InstanceEvent):
    """A complete listing did not show an expected VM. That is no proof: the VM is looked up on its own."""


@dataclass(frozen=True, slots=True)
class OrphanFound:
    """Two listings showed a VM with all our tags and without a record."""

    id: InstanceId
    provider_id: ProviderId


@dataclass(frozen=True, slots=True)
class DuplicateVmFound:
    """Two listings showed a second VM with the ID of a record; `provider_id` is the one that the record does not name."""

    id: InstanceId
    provider_id: ProviderId


@dataclass(frozen=True, slots=True)
class AgentSeenOnVm:
    """Of several VMs with the ID of a record, the agent runs on this one; the record names another."""

    id: InstanceId
    provider_id: ProviderId
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""


@dataclass(frozen=True, slots=True)
class DuplicateVmDeleted:
    """The duplicate VM was deleted or did not exist anymore. A failure needs no event: the delete is repeated."""

    id: InstanceId
    provider_id: ProviderId


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a record keeps of its agent's certificate."""

    public_key: str  # base64 of the 32 raw bytes
    certificate_serial: str  # hexadecimal
    certificate_expires: float

    def as_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Credential.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(Credential):
    """The agent holds a new certificate, perhaps with a new key."""

    id: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(Credential):
    id: InstanceId
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""


class AgentConnected(_InstanceEvent):
    """The agent's stream is open."""


@dataclass(frozen=True, slots=True)
class ReadinessReported:
    """The readiness in an agent's report; posted when it changes."""

    id: InstanceId
    files: bool  # the desired file set is installed and its on-receive command succeeded
    failing: tuple[str, ...] = ()  # names of failing checks
    pending: tuple[str, ...] = ()  # names of checks without a result yet
    blocked: str = ""  # why the file set cannot be rendered; then a replacement would not help
    problem: str = ""  # the agent's own message about its files
    serving: bool = False  # blocked, and all is well with the set that it has

    @property
    def ready(self) -> bool:
        return self.files and not self.failing and not self.pending


class ReadinessUnknown(_InstanceEvent):
    """The agent reports, but its revision could not be read yet: nobody knows which files and checks it should have."""


class AgentLost(_InstanceEvent):
    """The agent's last connection ended without a goodbye."""


class AgentRestarting(_InstanceEvent):
    """The agent closed its connection to restart."""


class CloneDetected(_InstanceEvent):
    """It is certain that two running agents use the instance's identity."""


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    id: InstanceId
    kind: NoticeKind
    deadline: float | None = None


class DrainAcknowledged(_InstanceRequest):
    """An operator has drained the instance's workloads."""


@dataclass(frozen=True, slots=True)
class InstanceRequested:
    """A request for an on-demand instance. The caller chooses the ID, so that a repeated request creates one instance."""

    id: InstanceId
    instance_type: str = ""
    vars: Mapping[str, str] = field(default_factory=dict)
    requester: str = ""
    limit: int | None = None  # of the group's on-demand instances; None: no limit
    requester_limit: int | None = None  # of those of this requester
    by: str = ""


class DeletionRequested(_InstanceRequest):
    """A request to delete an instance."""


class ReplacementRequested(_InstanceRequest):
    """A request to replace an instance."""


class AdoptionRequested(_InstanceRequest):
    """A request to write a record for an unknown VM."""


class ReleaseRequested(_InstanceRequest):
    """A request to delete an unknown VM."""


@dataclass(frozen=True, slots=True)
class RemovalOrdered:
    """The instances that leave first when the group shrinks, in this order. Replaces an earlier order."""

    ids: tuple[InstanceId, ...]
    by: str = ""


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """The API was asked to delete this group."""


@dataclass(frozen=True, slots=True)
class RolloutResumed:
    """A request to continue a paused or halted rollout."""

    by: str = ""


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The desired group, the policy or a flag of the shard changed: decide again."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time has come at which something could change."""


VmEvent = VmCreated | VmCreateFailed | VmDeleted | VmDeleteFailed | VmChecked | VmMissingFromListing
DuplicateVmEvent = DuplicateVmFound | AgentSeenOnVm | DuplicateVmDeleted
ConnectionEvent = Registered | Renewed | AgentConnected | AgentLost | AgentRestarting | CloneDetected
AgentEvent = ConnectionEvent | ReadinessReported | ReadinessUnknown | NoticeReceived
InstanceRequest = DrainAcknowledged | DeletionRequested | ReplacementRequested
MemberEvent = VmEvent | DuplicateVmEvent | AgentEvent | InstanceRequest  # about an instance that has a record
GroupRequest = InstanceRequested | AdoptionRequested | ReleaseRequested | RemovalOrdered
GroupEvent = OrphanFound | GroupRequest | GroupDeleted | RolloutResumed
Event = MemberEvent | GroupEvent | GroupChanged | TimerFired
