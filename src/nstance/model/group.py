"""A group's wish, resolved from configuration and dynamic groups, and the shard's timings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nstance.model.ids import GroupKey, Kind


class UpdateOrder(StrEnum):
    PARALLEL = "parallel"  # as many at once as the limits allow
    SERIAL = "serial"  # the next one starts when the last old one is gone and the new one has settled


class OnFailure(StrEnum):
    HALT = "halt"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What `core` needs to know of a group. Arguments, files and userdata stay with the configuration."""

    key: GroupKey
    size: int
    template: str
    kind: Kind
    instance_type: str = ""
    subnet_pool: str = ""
    subnets: tuple[str, ...] = ()  # of the pool, in the order to try them
    infra_hash: str = ""
    runtime_hash: str = ""
    drain_timeout: float = 300.0
    registration_timeout: float = 300.0
    load_balancers: tuple[str, ...] = ()
    max_surge: int = 1
    max_unavailable: int = 0
    order: UpdateOrder = UpdateOrder.PARALLEL
    settle: float = 0.0  # serial only: how long a new instance must have been ready before the next step
    canary: int = 0  # how many are replaced before the rollout pauses; 0: it does not pause
    pause_after_canary: float | None = None  # go on by itself after so many seconds; None: when somebody resumes it
    stop_after_canary: bool = False  # halt there instead of pausing
    max_failures: int = 2  # instances of a new revision that may fail to become ready before the rollout halts
    on_failure: OnFailure = OnFailure.HALT
    ready_timeout: float = 600.0  # after registration: who has not become ready by then is unhealthy
    unhealthy_after: float | None = None  # a check that fails for so long makes the instance unhealthy
    changed_by: str = "config"  # who asked for the current revision
    rolled_back_from: str = ""  # infra hash of the revision that this one stands in for
    vars: Mapping[str, str] = field(default_factory=dict)
    static: bool = True
    overridden: bool = False  # static, and the API has set something of it
    paused: bool = False


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
    default_drain_timeout: float = 300.0  # of instances that say nothing else, when their group is deleted
    replace_clones: bool = False  # an instance whose identity two agents use is replaced
    delete_unknown: bool = False  # VMs that no record knows are deleted, not held; many at once never
    operator_recent: float = 60.0  # the lease of an operator that drains: so long after its last watch it still counts
