"""What can happen to a group. Everything that reaches a decision is one of these values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from nstance.model.ids import InstanceId, ProviderId


class VmState(Enum):
    """What a provider's status means for us."""

    UNKNOWN = "unknown"  # not asked, no answer, or an answer that says nothing: never a reason to act
    RUNNING = "running"
    DOWN = "down"  # the provider shows it, and it does not run: stopping, stopped, suspended, deleting
    DELETED = "deleted"  # the provider positively says that it is no more
    ABSENT = "absent"  # the provider does not know it; after a create or delete that may be a lie


class Failure(Enum):
    """Why a create or delete failed, named by what follows from it."""

    NO_CAPACITY = "no-capacity"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown-outcome"
    UNSENT = "unsent"  # nobody wanted it any more when its turn came: the provider was not asked
    STALE = "stale"  # the intent cannot be repeated byte by byte, and the provider does not know its VM


class NoticeKind(Enum):
    SPOT = "spot-termination"
    REBALANCE = "spot-rebalance"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class VmCreated:
    id: InstanceId
    provider_id: ProviderId
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""
    seen: bool = False  # the provider's "gone" may be believed from now on


@dataclass(frozen=True, slots=True)
class VmCreateFailed:
    id: InstanceId
    failure: Failure
    message: str


@dataclass(frozen=True, slots=True)
class VmDeleted:
    id: InstanceId
    final: bool  # the provider positively says that it runs no more; otherwise the deletion has begun


@dataclass(frozen=True, slots=True)
class VmDeleteFailed:
    id: InstanceId
    message: str


@dataclass(frozen=True, slots=True)
class VmChecked:
    """The answer to a look at the provider, by one call or by a listing. UNKNOWN without a provider ID: the call failed;
    with one: the VM is there and its status says nothing. `asked`: when, if it may have taken a while to be answered."""

    id: InstanceId
    state: VmState
    provider_id: ProviderId | None = None
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""
    asked: float | None = None


@dataclass(frozen=True, slots=True)
class VmMissingFromListing:
    """A complete listing did not show a VM that should be there. Not a proof: it is asked for singly."""

    id: InstanceId


@dataclass(frozen=True, slots=True)
class OrphanFound:
    """A VM with our complete tags that no record knows, seen in two listings."""

    id: InstanceId
    provider_id: ProviderId


@dataclass(frozen=True, slots=True)
class DuplicateVmFound:
    """A second VM with the ID of a record, seen in two listings. `provider_id` is the one that the record does not know."""

    id: InstanceId
    provider_id: ProviderId


@dataclass(frozen=True, slots=True)
class AgentSeenOnVm:
    """Of several VMs with the ID of a record, this one's agent has registered; the record knew another one."""

    id: InstanceId
    provider_id: ProviderId
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""


@dataclass(frozen=True, slots=True)
class DuplicateVmDeleted:
    """The second VM was deleted, or was gone already. A failure needs no event: it is asked for again."""

    id: InstanceId
    provider_id: ProviderId


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    id: InstanceId
    public_key: str
    certificate_serial: str
    certificate_expires: float
    ip4: str = ""
    ip6: str = ""
    hostname: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The agent holds a new certificate, perhaps with a new key."""

    id: InstanceId
    public_key: str
    certificate_serial: str
    certificate_expires: float


@dataclass(frozen=True, slots=True)
class AgentConnected:
    id: InstanceId


@dataclass(frozen=True, slots=True)
class ReadinessReported:
    """What the agent's report says about readiness; posted when it changed. Ready: nothing is missing."""

    id: InstanceId
    files: bool  # the file set that the instance should have is installed, and its on-receive command has succeeded
    failing: tuple[str, ...] = ()  # names of checks that fail
    pending: tuple[str, ...] = ()  # names of checks without a result yet
    blocked: str = ""  # why the file set cannot be rendered; then a replacement would not help
    problem: str = ""  # what its agent says is wrong with its files, for people

    @property
    def ready(self) -> bool:
        return self.files and not self.failing and not self.pending


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent's last connection ended without a goodbye."""

    id: InstanceId


@dataclass(frozen=True, slots=True)
class AgentRestarting:
    id: InstanceId


@dataclass(frozen=True, slots=True)
class CloneDetected:
    """It is certain that two agents with the instance's identity live."""

    id: InstanceId


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    id: InstanceId
    kind: NoticeKind
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class DrainAcknowledged:
    id: InstanceId
    by: str = ""  # who said so, for the history; in what follows: who asked


@dataclass(frozen=True, slots=True)
class InstanceRequested:
    """An on-demand instance. The ID is the caller's, so that asking twice makes one."""

    id: InstanceId
    instance_type: str = ""
    vars: Mapping[str, str] = field(default_factory=dict)
    by: str = ""


@dataclass(frozen=True, slots=True)
class DeletionRequested:
    id: InstanceId
    by: str = ""


@dataclass(frozen=True, slots=True)
class ReplacementRequested:
    id: InstanceId
    by: str = ""


@dataclass(frozen=True, slots=True)
class AdoptionRequested:
    """Somebody wants a record for a VM that has none."""

    id: InstanceId
    by: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """Somebody wants a VM deleted that has no record."""

    id: InstanceId
    by: str = ""


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """Somebody asked through the API that this group be deleted."""


@dataclass(frozen=True, slots=True)
class RolloutResumed:
    """Somebody lets a paused or halted rollout go on."""


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """The wish, the policy or something about the shard is new: look again."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The instant has come at which something could change."""


Event = (
    VmCreated
    | VmCreateFailed
    | VmDeleted
    | VmDeleteFailed
    | VmChecked
    | VmMissingFromListing
    | OrphanFound
    | DuplicateVmFound
    | AgentSeenOnVm
    | DuplicateVmDeleted
    | Registered
    | Renewed
    | AgentConnected
    | ReadinessReported
    | AgentLost
    | AgentRestarting
    | CloneDetected
    | NoticeReceived
    | DrainAcknowledged
    | InstanceRequested
    | DeletionRequested
    | ReplacementRequested
    | AdoptionRequested
    | ReleaseRequested
    | GroupDeleted
    | RolloutResumed
    | GroupChanged
    | TimerFired
)
