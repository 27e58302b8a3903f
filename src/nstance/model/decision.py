"""The input and output of a decision: a view of one group in; record changes, effects and reasons out.

Changes are committed before any effect starts. Effects are idempotent and name an instance; their outcome comes back as
an event.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum

from nstance.model.group import Group
from nstance.model.ids import GroupKey, InstanceId, ProviderId
from nstance.model.instance import Change, Instance
from nstance.model.observation import Observation
from nstance.model.offer import CapacityKey, Exhaustion
from nstance.model.rollout import GroupRecord
from nstance.model.vm import UnknownVm


@dataclass(frozen=True, slots=True)
class CreateVm:
    id: InstanceId
    may_exist: bool = False  # an earlier call, perhaps of another leader, may have created it


@dataclass(frozen=True, slots=True)
class DeleteVm:
    id: InstanceId
    provider_id: ProviderId | None
    keep_console: bool = False  # save its console output first, if the provider has any: it may explain the failure


@dataclass(frozen=True, slots=True)
class DeleteDuplicateVm:
    """Delete a second VM with the ID of a record. Only by its provider ID: the first one must stay."""

    id: InstanceId
    provider_id: ProviderId


@dataclass(frozen=True, slots=True)
class CheckVm:
    id: InstanceId
    provider_id: ProviderId | None


Effect = CreateVm | CheckVm | DeleteVm | DeleteDuplicateVm


class ReasonCode(Enum):
    """Why something was decided. The set is bounded because metrics count by it."""

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
    PREFERENCE = "preferred-offer"
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
    CREDENTIALS = "credentials"
    PROVIDER = "provider"


# Reasons that a person should look at: logged as warnings and highlighted by the admin tool.
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
        ReasonCode.CREDENTIALS,
        ReasonCode.PROVIDER,
    }
)


@dataclass(frozen=True, slots=True)
class Reason:
    code: ReasonCode
    message: str
    instance: InstanceId | None = None


class Rejection(Enum):
    """Why a request was not fulfilled. A value, not an exception."""

    UNKNOWN = "unknown"  # no such instance or group
    ENDING = "ending"  # the instance is deleting or deleted
    LIMIT = "limit"  # as many on-demand instances as its template allows
    NOT_DRAINING = "not-draining"
    KEY_BOUND = "key-bound"  # the nonce belongs to another key
    EXISTS = "exists"
    ON_DEMAND = "on-demand"  # such instances are never replaced
    PAUSED = "paused"
    NO_ROOM = "no-room"  # the group has its size
    NO_CAPACITY = "no-capacity"  # every offer is exhausted
    NOT_RUNNING = "not-running"
    NOT_HELD = "not-held"  # the rollout is neither paused nor halted


@dataclass(frozen=True, slots=True)
class Trend:
    """How a group's creations went in this term."""

    failures: int = 0
    counted_at: float = 0.0
    retry_at: float = 0.0
    no_capacity_until: float = 0.0  # no offer had capacity: when the first one is tried again
    last_error: str = ""
    infra_hash: str = ""  # of the configuration that failed: a corrected one need not wait
    unready: bool = False  # so many instances are unhealthy at once that they are replaced one by one
    blocked_since: float | None = None  # since when none can be created: image or userdata are missing


@dataclass(frozen=True, slots=True)
class Fallback:
    """The revision that a group's new instances have while a rollout is held, and lost ones' while it has no capacity."""

    group: Group | None  # the group as that revision; None: it is being read
    blocked: str = ""  # why none of its instances can be created now


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that a decision about one group may look at. When a flag changes, the group is decided again."""

    key: GroupKey
    desired: Group | None  # None: known to be unwanted, which is different from not known
    members: Mapping[InstanceId, Instance]
    observations: Mapping[InstanceId, Observation]  # of the whole shard: never copied or counted
    trend: Trend = Trend()
    record: GroupRecord | None = None
    unknown: tuple[UnknownVm, ...] = ()  # VMs with the group's tags and without a record
    groups_lost: bool = False  # the file of dynamic groups is missing: what the API once set is not known
    listed: bool = True  # the provider was listed completely in this term: before that, nothing is deleted
    listening_since: float = 0.0  # when this term began to accept agents
    reconnect_grace: float = 0.0  # how long agents may take to reconnect after a change of leaders
    mass_silence: bool = False  # so many agents are unresponsive that the fault is probably on our side
    mass_absence: bool = False  # so many VMs were missing from a listing that it is not believed
    mass_since: float | None = None  # when either of these began
    revision_stored: bool = True  # the current revision is in the bucket, for a later rollback
    # When a drainer of the tenant last watched. At the start of a term: now, if the tenant had one in the last term,
    # because it may be about to reconnect.
    operator_seen: float | None = None
    exhausted: Mapping[CapacityKey, Exhaustion] = field(default_factory=dict)  # of the whole shard
    crowded: Set[str] = frozenset()  # subnets that are nearly full
    blocked: str = ""  # why no create request can be built now (userdata or image unavailable)
    fallback: Fallback | None = None  # None: there is no earlier revision that instances can be made from


@dataclass(frozen=True, slots=True)
class Decision:
    changes: tuple[Change, ...] = ()
    effects: tuple[Effect, ...] = ()
    reasons: tuple[Reason, ...] = ()
    observations: Mapping[InstanceId, Observation] = field(default_factory=dict)  # only those that changed
    trend: Trend = Trend()
    rejections: Mapping[int, Rejection] = field(default_factory=dict)  # by position of the event
    record: GroupRecord | None = None  # the new group record; None: unchanged
    exhausted: Mapping[CapacityKey, Exhaustion] | None = None  # of the whole shard; None: unchanged
    wake_at: float | None = None
