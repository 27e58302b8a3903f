"""The `shard` block: the provider, addresses, timings and limits of one shard.

Times are seconds after parsing. Rules within one block are here; rules between blocks are in `config.checks.references`.
"""

import itertools
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from nstance.config import addresses
from nstance.config.addresses import Service
from nstance.config.model import scalars
from nstance.config.model.prices import PriceList
from nstance.config.model.scalars import Block, invalid
from nstance.model.group import CAPACITY_RETRY_SECONDS


class Infra(Block):
    provider: Annotated[
        Literal["process", "tmux", "memory", "qemu", "aws", "gcp", "proxmox"],
        BeforeValidator(
            scalars.provider_name,
            json_schema_input_type=Literal[
                "process", "tmux", "memory", "mock", "qemu", "aws", "gcp", "google", "proxmox"
            ],
        ),
    ]
    region: scalars.Text = ""
    zone: scalars.Text = ""
    options: scalars.Args = Field(default_factory=dict)


def _default_bind(service: Service) -> addresses.Address:
    return addresses.Address("", addresses.PORTS[service])


class BindAddresses(Block):
    health_addr: scalars.Bind = _default_bind(Service.HEALTH)
    election_addr: scalars.Bind = _default_bind(Service.ELECTION)
    registration_addr: scalars.Bind = _default_bind(Service.REGISTRATION)
    operator_addr: scalars.Bind = _default_bind(Service.OPERATOR)
    agent_addr: scalars.Bind = _default_bind(Service.AGENT)

    def by_service(self) -> Mapping[Service, addresses.Address]:
        return {service: getattr(self, service.key) for service in Service}

    @model_validator(mode="after")
    def _are_distinct(self) -> Self:
        clashes = [
            f"{address} for {service.key} and {taken} for {other.key}"
            for (other, taken), (service, address) in itertools.combinations(self.by_service().items(), 2)
            if address.clashes(taken)
        ]
        if clashes:
            raise invalid(f"expected distinct bind addresses, found {'; '.join(clashes)}")
        return self


class AdvertisedAddresses(Block):
    """The addresses that others connect to. Default: the bind address."""

    health_addr: scalars.Advertise = ()
    election_addr: scalars.Advertise = ()
    registration_addr: scalars.Advertise = ()
    operator_addr: scalars.Advertise = ()
    agent_addr: scalars.Advertise = ()

    def by_service(self) -> Mapping[Service, addresses.Advertised]:
        return {service: getattr(self, service.key) for service in Service}


class LeaderNetwork(Block):
    """The leader address, which moves to the server that leads."""

    ip: scalars.Ip4 = ""
    ip6: scalars.Ip6 = ""
    interface_id: scalars.Text = ""


class Health(Block):
    suspect_after: scalars.Period = 10.0
    dead_after: scalars.Period = 60.0
    shutdown_grace: scalars.Duration = 5.0

    rules = ((lambda h: h.suspect_after < h.dead_after, "suspect_after to be shorter than dead_after"),)


class GarbageCollection(Block):
    interval: scalars.Period = 60.0
    registration_timeout: scalars.Period = 300.0
    deleted_record_retention: scalars.Period = 1800.0
    unknown: Literal["hold", "delete"] = "hold"  # what to do with VMs that have the shard's tags and no record

    rules = ((lambda gc: gc.registration_timeout > gc.interval, "registration_timeout to be longer than interval"),)


class Expiry(Block):
    """Ages at which instances are replaced. Default: never."""

    eligible_age: scalars.Period | None = None
    forced_age: scalars.Period | None = None
    ondemand_age: scalars.Period | None = None

    rules = (
        (
            lambda e: e.eligible_age is None or e.forced_age is None or e.eligible_age < e.forced_age,
            "eligible_age to be shorter than forced_age",
        ),
    )


class LeaseTimings(Block):
    """A lease that only storage confirms: its duration and renewal interval."""

    lease: scalars.Period
    renewal: scalars.Period

    rules = ((lambda t: t.renewal < t.lease, "renewal to be shorter than lease"),)


class StandbyUnreachable(LeaseTimings):
    """A standby exists but cannot be reached."""

    lease: scalars.Period = 1.9
    renewal: scalars.Period = 1.0


class WithoutStandby(LeaseTimings):
    """There is no standby."""

    lease: scalars.Period = 15.0
    renewal: scalars.Period = 5.0


class LeaderElection(Block):
    """Timings of leader election. A store that needs more time between two writes of the lease gets it."""

    heartbeat: scalars.Period = Field(default=0.1, description="interval of heartbeats to the standbys")
    promise: scalars.Period | None = Field(
        default=None,
        description="how long a standby that answered does not challenge; default: 1s, or more for slow heartbeats",
    )
    crash_wait: scalars.Period | None = Field(
        default=None,
        description="the same after the leader's connection was reset and its port refused; default: three heartbeats",
    )
    lease: scalars.Period = Field(
        default=15.0, description="how long servers without a promise wait while there are standbys"
    )
    renewal: scalars.Period = Field(default=10.0, description="interval in storage while all standbys answer")
    urgent_renewal: scalars.Period = Field(
        default=0.5, description="interval in storage when a standby does not answer"
    )
    member_timeout: scalars.Period = Field(
        default=30.0, description="a standby that does not answer for this long is removed"
    )
    unreachable: StandbyUnreachable = StandbyUnreachable()
    alone: WithoutStandby = WithoutStandby()

    @property
    def three_heartbeats(self) -> float:
        return 3 * self.heartbeat - 1e-9  # decimal fractions are not exact

    @property
    def promise_seconds(self) -> float:
        return self.promise if self.promise is not None else max(1.0, 5 * self.heartbeat, 2 * self.urgent_renewal)

    @property
    def crash_wait_seconds(self) -> float:
        return self.crash_wait if self.crash_wait is not None else min(self.promise_seconds, 3 * self.heartbeat)

    rules = (
        (lambda e: e.three_heartbeats <= e.promise_seconds, "at least three heartbeats in a promise"),
        (
            lambda e: e.three_heartbeats <= e.crash_wait_seconds <= e.promise_seconds,
            "crash_wait to be from three heartbeats to the promise",
        ),
        (lambda e: e.urgent_renewal < e.promise_seconds, "urgent_renewal to be shorter than promise"),
        (
            lambda e: e.urgent_renewal <= e.renewal < e.lease,
            "renewal to be at least urgent_renewal and shorter than lease",
        ),
        (lambda e: e.member_timeout > e.promise_seconds, "member_timeout to be longer than promise"),
    )


class ErrorExitJitter(Block):
    """The random wait before a fatal exit, so that servers that fail together do not restart together."""

    min_delay: scalars.Duration = 10.0
    max_delay: scalars.Duration = 40.0

    rules = ((lambda j: j.min_delay <= j.max_delay, "min_delay to be at most max_delay"),)


class Identity(Block):
    """Certificates of agents and operators: their lifetimes, and the reaction to two agents with the same one."""

    agent_ttl: scalars.Lifetime = 30 * 86_400.0
    operator_ttl: scalars.Lifetime = 365 * 86_400.0
    on_clone: Literal["alarm", "replace"] = Field(
        default="alarm",
        description="when two live agents have the same identity: only warn, or also replace the instance",
    )


class ShardConfig(Block):
    id: scalars.ShardId | None = None
    infra: Infra
    bind: BindAddresses = BindAddresses()
    advertise: AdvertisedAddresses = AdvertisedAddresses()
    leader_network: LeaderNetwork | None = None
    subnet_pools: Mapping[scalars.Name, tuple[scalars.NonEmptyText, ...]] = Field(default_factory=dict)
    dynamic_subnet_pools: tuple[scalars.Text, ...] | None = Field(
        default=None, description="pools that dynamic groups may use; default: all"
    )
    request_timeout: scalars.Period = 30.0
    create_rate_limit: scalars.Duration = 0.0
    create_concurrency: Annotated[StrictInt, Field(ge=1, le=1000)] = 32
    capacity_retry: scalars.Period = Field(
        default=CAPACITY_RETRY_SECONDS,
        description="how long an offer without capacity is avoided; grows to ten times this",
    )
    health_check_interval: scalars.Duration = 60.0
    health: Health = Health()
    default_drain_timeout: scalars.Duration = 300.0
    image_refresh_interval: scalars.Period = 6 * 3600.0
    userdata_hosts: tuple[scalars.HostName, ...] = Field(
        default=(), description="hosts with private addresses that userdata may be fetched from"
    )
    shutdown_timeout: scalars.Period = 10.0
    garbage_collection: GarbageCollection = GarbageCollection()
    expiry: Expiry = Expiry()
    leader_election: LeaderElection = LeaderElection()
    error_exit_jitter: ErrorExitJitter = ErrorExitJitter()
    identity: Identity = Identity()
    prices: PriceList | None = Field(default=None, description="what instances cost, for plans and metrics")
