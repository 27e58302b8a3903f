"""The desired state of a group, resolved from configuration and API, and the shard's timings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nstance.model.ids import GroupKey, Kind

CAPACITY_RETRY_SECONDS = 180.0


class UpdateOrder(StrEnum):
    PARALLEL = "parallel"  # as many at once as the limits allow
    SERIAL = "serial"  # the next one starts when the last old one is gone and the new one has settled


class OnFailure(StrEnum):
    HALT = "halt"
    ROLLBACK = "rollback"


class Preference(StrEnum):
    LOOSE = "loose"  # an instance on a less preferred market or type stays there
    STRICT = "strict"  # it is replaced when a better one has capacity again


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What `core` needs to know about a group. Arguments, files and userdata stay in the configuration."""

    key: GroupKey
    size: int
    template: str
    kind: Kind
    instance_types: tuple[str, ...] = ()  # in order of preference
    markets: tuple[str, ...] = ()  # in order of preference; empty: as the arguments say
    prefer: Preference = Preference.LOOSE
    capacity_retry: float = CAPACITY_RETRY_SECONDS  # how long an offer without capacity is avoided at first
    subnet_pool: str = ""
    subnets: tuple[str, ...] = ()  # of the pool, in the order to try them
    infra_hash: str = ""
    runtime_hash: str = ""  # of files, vars and certificates
    parts_hash: str = ""  # of these and the checks; together with the infra hash it names the stored spec
    drain_timeout: float = 300.0
    registration_timeout: float = 300.0
    load_balancers: tuple[str, ...] = ()
    max_surge: int = 1
    max_unavailable: int = 0
    order: UpdateOrder = UpdateOrder.PARALLEL
    settle: float = 0.0  # serial only: how long a new instance must have been ready before the next step
    canary: int = 0  # instances to replace before the rollout pauses; 0: it does not pause
    pause_after_canary: float | None = None  # seconds until it resumes by itself; None: it waits to be resumed
    stop_after_canary: bool = False  # halt there instead of pausing
    max_failures: int = 2  # instances of a new revision that may fail to become ready before the rollout halts
    on_failure: OnFailure = OnFailure.HALT
    ready_timeout: float = 600.0  # after registration; an instance that is not ready by then is unhealthy
    unhealthy_after: float | None = None  # seconds of a failing check that make an instance unhealthy
    changed_by: str = "config"  # who requested the current revision
    rolled_back_from: str = ""  # infra hash of the configured revision that a rollback replaced
    vars: Mapping[str, str] = field(default_factory=dict)
    static: bool = True
    overridden: bool = False  # static, and the API has overridden a setting
    paused: bool = False

    @property
    def instance_type(self) -> str:
        """The preferred one."""
        return self.instance_types[0] if self.instance_types else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The shard's timings that decisions depend on, in seconds."""

    suspect_after: float = 10.0
    dead_after: float = 60.0
    shutdown_grace: float = 5.0
    gc_interval: float = 60.0
    deleted_retention: float = 1800.0
    eligible_age: float | None = None
    forced_age: float | None = None
    ondemand_age: float | None = None
    default_drain_timeout: float = 300.0  # of instances without their own, when their group is deleted
    replace_clones: bool = False  # replace an instance whose identity two agents use
    delete_unknown: bool = False  # delete VMs without a record instead of holding them; never many at once
    operator_recent: float = 60.0  # how long after its last watch a drainer still counts
