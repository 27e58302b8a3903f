"""What a decision consists of: record changes, effects, reasons, and when to look again.

Changes are committed before any effect starts. Effects are idempotent and name an instance; whoever carries them out
reports the outcome as an event.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields
from enum import Enum
from operator import attrgetter

from nstance.model.events import NoticeKind, VmState
from nstance.model.group import Group
from nstance.model.ids import GroupKey, InstanceId, ProviderId
from nstance.model.instance import Change, Instance
from nstance.model.rollout import GroupRecord
from nstance.model.vm import UnknownVm


@dataclass(frozen=True, slots=True)
class CreateVm:
    id: InstanceId


@dataclass(frozen=True, slots=True)
class DeleteVm:
    id: InstanceId
    provider_id: ProviderId | None
    keep_console: bool = False  # read its console output first, if the provider has it: it may say why the VM failed


@dataclass(frozen=True, slots=True)
class DeleteDuplicateVm:
    """Delete a second VM that carries the ID of a record. By its provider ID only: the first one must stay."""

    id: InstanceId
    provider_id: ProviderId


@dataclass(frozen=True, slots=True)
class CheckVm:
    id: InstanceId
    provider_id: ProviderId | None


Effect = CreateVm | CheckVm | DeleteVm | DeleteDuplicateVm


class ReasonCode(Enum):
    """Why something was decided. Bounded: metrics count by it."""

    SCALE_UP = "scale-up"
    SCALE_DOWN = "scale-down"
    REPLACE = "replace"
    GONE = "gone"
    SPOT = "spot-termination"
    SHUTDOWN = "shutdown"
    SUSPECT = "suspect"
    RECOVERED = "recovered"
    UNHEALTHY = "unhealthy"
    DRIFT = "config-drift"
    FORCED_EXPIRY = "forced-expiry"
    ELIGIBLE_EXPIRY = "eligible-expiry"
    ONDEMAND_EXPIRY = "ondemand-expiry"
    REQUESTED = "requested"
    UNREGISTERED = "unregistered"
    SUPERSEDED = "superseded"
    ORPHAN = "orphan"
    REFUSED = "refused"
    CREATED = "created"
    REGISTERED = "registered"
    CREATE_FAILED = "create-failed"
    DELETE_FAILED = "delete-failed"
    DELETED = "deleted"
    DRAIN_STARTED = "drain-started"
    DRAINED = "drained"
    DRAIN_DEADLINE = "drain-deadline"
    DRAIN_CANCELLED = "drain-cancelled"
    BACK_OFF = "back-off"
    THROTTLED = "throttled"
    BLOCKED = "blocked"
    LOAD_BALANCER = "load-balancer"
    MASS_SILENCE = "mass-silence"
    MASS_ABSENCE = "mass-absence"
    READY = "ready"
    NOT_READY = "not-ready"
    ROLLOUT = "rollout"
    ROLLOUT_HALTED = "rollout-halted"
    UNKNOWN_VM = "unknown-vm"
    ADOPTED = "adopted"
    DRAINER = "drainer"
    LEADERSHIP = "leadership"
    CONFIG = "config"
    CLOCK = "clock"
    SECURITY = "security"


TROUBLE = frozenset(
    {
        ReasonCode.GONE,
        ReasonCode.SUSPECT,
        ReasonCode.UNHEALTHY,
        ReasonCode.UNREGISTERED,
        ReasonCode.ORPHAN,
        ReasonCode.REFUSED,
        ReasonCode.CREATE_FAILED,
        ReasonCode.DELETE_FAILED,
        ReasonCode.DRAIN_DEADLINE,
        ReasonCode.BACK_OFF,
        ReasonCode.THROTTLED,
        ReasonCode.BLOCKED,
        ReasonCode.LOAD_BALANCER,
        ReasonCode.MASS_SILENCE,
        ReasonCode.MASS_ABSENCE,
        ReasonCode.ROLLOUT_HALTED,
        ReasonCode.UNKNOWN_VM,
        ReasonCode.CLOCK,
        ReasonCode.SECURITY,
    }
)


@dataclass(frozen=True, slots=True)
class Reason:
    code: ReasonCode
    message: str
    instance: InstanceId | None = None


class Rejection(Enum):
    """Why a wish from outside was not fulfilled. A value, not an exception."""

    UNKNOWN = "unknown"  # no such instance or group
    ENDING = "ending"  # the instance is deleting or deleted
    NOT_DRAINING = "not-draining"
    KEY_BOUND = "key-bound"  # the nonce belongs to another key
    EXISTS = "exists"
    ON_DEMAND = "on-demand"  # such instances are never replaced
    PAUSED = "paused"
    NO_ROOM = "no-room"  # the group has its size
    NOT_RUNNING = "not-running"
    NOT_HELD = "not-held"  # the rollout is neither paused nor halted


@dataclass(frozen=True, slots=True)
class Observation:
    """What this leader knows of an instance beyond its record. Forgotten with the leadership, and then asked for anew."""

    last_seen: float  # the last sign of life; at the start of a term: when listening began
    connected: bool = False
    connected_since: float = 0.0
    met: bool = False  # was heard in this term
    awaited: bool = False  # registered in this term, and has yet to connect
    restarting: bool = False  # said goodbye to restart
    lost: float | None = None  # when the connection ended without a goodbye
    notice: NoticeKind | None = None
    notice_at: float = 0.0
    notice_deadline: float | None = None
    ready: bool = False  # as its agent reported in this term
    ready_since: float = 0.0
    not_ready: str = ""  # why not
    failing_since: float | None = None  # a check fails since then
    blocked: str = ""  # why its file set cannot be made
    unblocked_at: float = 0.0  # when it could be made again: its time to become ready counts from then
    vm: VmState = VmState.UNKNOWN
    vm_at: float | None = None  # when the provider said so
    absent_since: float | None = None
    checking: bool = False
    checks: int = 0
    check_due: float | None = None
    ours: bool = False  # its intent was written in this term: nobody else has ever asked for it
    creating: bool = False
    create_attempts: int = 0
    create_due: float = 0.0
    deleting: bool = False
    delete_attempts: int = 0
    delete_due: float = 0.0
    deletion_begun: float | None = None  # the provider accepted a delete
    duplicate_vm_due: float = 0.0


_BUT_HEARD = attrgetter(*(each.name for each in fields(Observation)[1:]))


def last_seen_at(facts: Observation, at: float) -> Observation:
    """As `replace` does it, in half the time: of thousands of agents each is heard every few seconds."""
    return Observation(at, *_BUT_HEARD(facts))


@dataclass(frozen=True, slots=True)
class Trend:
    """How a group's creations have gone lately, in this term."""

    failures: int = 0
    counted_at: float = 0.0
    retry_at: float = 0.0
    refused_subnets: Mapping[str, float] = field(default_factory=dict)  # subnet → until when it is not tried
    last_error: str = ""
    infra_hash: str = ""  # of the wish that failed: a corrected configuration need not wait
    unready: bool = False  # so many are unhealthy at once that they are replaced one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One group's facts: all that a decision may look at. When a flag of it turns, the group is decided anew."""

    key: GroupKey
    desired: Group | None  # None: known not to be wished, which is something else than not known
    members: Mapping[InstanceId, Instance]
    facts: Mapping[InstanceId, Observation]
    trend: Trend = Trend()
    record: GroupRecord | None = None
    unknown: tuple[UnknownVm, ...] = ()  # VMs with the group's tags that no record knows
    groups_lost: bool = False  # there is no file of dynamic groups: what the API once set is not known
    listed: bool = True  # the provider was listed completely in this term: before that, nothing is deleted
    listening_since: float = 0.0  # when this term began to accept agents
    reconnect_grace: float = 0.0  # how long agents may take to come back after a change of leaders
    mass_silence: bool = False  # so many agents are silent that the fault is probably here
    mass_absence: bool = False  # so many VMs were missing from a listing that it is not believed
    mass_since: float | None = None  # when either of these began
    revision_stored: bool = True  # what the current revision is made of is in the bucket, for a later rollback
    operator_seen: float | None = None  # when an operator of the tenant that drains last watched; at the start of a
    # term: now, if the tenant had one in the last term, because it may be about to reconnect
    crowded: Set[str] = frozenset()  # subnets that are nearly full
    blocked: str = ""  # why no create request can be made now (userdata or image not to be had)


@dataclass(frozen=True, slots=True)
class Decision:
    changes: tuple[Change, ...] = ()
    effects: tuple[Effect, ...] = ()
    reasons: tuple[Reason, ...] = ()
    facts: Mapping[InstanceId, Observation] = field(default_factory=dict)  # those that are new
    trend: Trend = Trend()
    refusals: Mapping[int, Rejection] = field(default_factory=dict)  # by position of the event
    record: GroupRecord | None = None  # as it is from now on; None: unchanged
    wake_at: float | None = None
