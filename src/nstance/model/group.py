"""A group's wish, resolved from configuration and dynamic groups, and the shard's timings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nstance.model.ids import GroupKey, Kind


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
    vars: Mapping[str, str] = field(default_factory=dict)
    static: bool = True
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
    operator_recent: float = 600.0  # an operator seen within this time makes a drain worth waiting for
