"""The blocks `cluster` and `shard`: where state lives, who a server is, and how long things take.

Times are seconds once they are read. Rules inside one block are here; what refers to another block is in `checks`.
"""

import itertools
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from nstance.config import addresses, fields
from nstance.config.addresses import Service
from nstance.config.fields import Block, wrong

SecretsKind = Literal[
    "object-storage", "aws-secrets-manager", "aws-parameter-store", "google-secret-manager", "file", "env"
]
KeyKind = Literal["env", "file", "aws-secrets-manager", "aws-parameter-store", "google-secret-manager"]
DEFAULT_KEY_VARIABLE = "NSTANCE_ENCRYPTION_KEY"
# These hold only the users' own secrets: the cluster's CA lies sealed in object storage all the same.
PLAIN_STORES = ("file", "env")


class ClusterStorage(Block):
    """Where the cluster's shared objects are. Left out: in the shard's bucket, under `cluster/`."""

    provider: Literal["s3", "gcs", "file", "memory"] | None = None
    bucket: fields.Text = ""
    region: fields.Text = ""
    endpoint: fields.Text = ""
    prefix: fields.Prefix = "cluster/"

    @model_validator(mode="after")
    def _has_a_bucket(self) -> Self:
        if self.provider not in (None, "memory") and not self.bucket:
            raise wrong("expected a bucket where a storage provider is given, found none")
        if not self.provider and (self.bucket or self.region or self.endpoint):
            raise wrong("expected a storage provider where bucket, region or endpoint is given, found none")
        return self


class EncryptionKey(Block):
    """Where the key is, never the key itself."""

    provider: KeyKind = "env"
    source: fields.Text = ""

    @model_validator(mode="before")
    @classmethod
    def _default_variable(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("provider", "env") == "env" and not data.get("source"):
            return {**data, "source": DEFAULT_KEY_VARIABLE}
        return data

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.source:
            raise wrong("expected a source (the file or the secret that holds the key), found none")
        return self


class Secrets(Block):
    provider: SecretsKind = "object-storage"
    prefix: fields.Text = "secret/"
    project_id: fields.Text = ""
    encryption_key: EncryptionKey | None = None
    old_encryption_keys: tuple[EncryptionKey, ...] = ()
    cache_ttl: fields.Duration = 300.0

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_plain_stores(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("provider") not in PLAIN_STORES:
            return data
        prefix = "" if data["provider"] == "env" else cls.model_fields["prefix"].default
        return {"prefix": prefix, "encryption_key": {"source": DEFAULT_KEY_VARIABLE}, **data}

    @model_validator(mode="after")
    def _has_the_right_key(self) -> Self:
        if self.provider == "object-storage":
            if self.encryption_key is None:
                raise wrong("expected an encryption_key, because these secrets lie in object storage; found none")
            fields.key_prefix(self.prefix)
        elif self.provider in PLAIN_STORES:
            if self.encryption_key is None:
                raise wrong("expected an encryption_key, because the cluster's CA is sealed with it; found none")
        elif self.encryption_key is not None or self.old_encryption_keys:
            raise wrong(f'expected no encryption key: the store "{self.provider}" keeps secrets by itself')
        if self.provider == "google-secret-manager" and not self.project_id:
            raise wrong("expected a project_id for google-secret-manager, found none")
        return self


class Cluster(Block):
    id: fields.ClusterId
    storage: ClusterStorage = ClusterStorage()
    secrets: Secrets = Secrets(encryption_key=EncryptionKey(source=DEFAULT_KEY_VARIABLE))
    leader_election: Mapping[str, object] = Field(default_factory=dict, description="accepted, unused")


def _provider(value: object) -> object:
    return "memory" if value == "mock" else value


class Infra(Block):
    provider: Annotated[
        Literal["process", "tmux", "memory", "aws", "gcp", "proxmox"],
        BeforeValidator(
            _provider, json_schema_input_type=Literal["process", "tmux", "memory", "mock", "aws", "gcp", "proxmox"]
        ),
    ]
    region: fields.Text = ""
    zone: fields.Text = ""
    options: fields.Args = Field(default_factory=dict)


def _bound(service: Service) -> addresses.Address:
    return addresses.Address("", addresses.PORTS[service])


class BindAddresses(Block):
    health_addr: fields.Bind = _bound(Service.HEALTH)
    election_addr: fields.Bind = _bound(Service.ELECTION)
    registration_addr: fields.Bind = _bound(Service.REGISTRATION)
    operator_addr: fields.Bind = _bound(Service.OPERATOR)
    agent_addr: fields.Bind = _bound(Service.AGENT)

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
            raise wrong(f"expected distinct bind addresses, found {'; '.join(clashes)}")
        return self


class AdvertisedAddresses(Block):
    """What is left out is advertised as it is bound."""

    health_addr: fields.Advertise = ()
    election_addr: fields.Advertise = ()
    registration_addr: fields.Advertise = ()
    operator_addr: fields.Advertise = ()
    agent_addr: fields.Advertise = ()

    def by_service(self) -> Mapping[Service, addresses.Advertised]:
        return {service: getattr(self, service.key) for service in Service}


class LeaderNetwork(Block):
    """The fixed address that moves to whoever leads."""

    ip: fields.Ip4 = ""
    ip6: fields.Ip6 = ""
    interface_id: fields.Text = ""


class Health(Block):
    suspect_after: fields.Period = 10.0
    dead_after: fields.Period = 60.0
    shutdown_grace: fields.Duration = 5.0

    @model_validator(mode="after")
    def _suspects_before_it_condemns(self) -> Self:
        if self.suspect_after >= self.dead_after:
            raise wrong("expected suspect_after to be shorter than dead_after")
        return self


class GarbageCollection(Block):
    interval: fields.Period = 60.0
    registration_timeout: fields.Period = 300.0
    deleted_record_retention: fields.Period = 1800.0
    unknown: Literal["hold", "delete"] = "hold"  # what happens to VMs with the shard's tags that no record knows

    @model_validator(mode="after")
    def _gives_time_to_register(self) -> Self:
        if self.registration_timeout <= self.interval:
            raise wrong("expected registration_timeout to be longer than interval")
        return self


class Expiry(Block):
    """Ages past which instances are replaced. Left out: never."""

    eligible_age: fields.Period | None = None
    forced_age: fields.Period | None = None
    ondemand_age: fields.Period | None = None

    @model_validator(mode="after")
    def _asks_before_it_forces(self) -> Self:
        if self.eligible_age is not None and self.forced_age is not None and self.eligible_age >= self.forced_age:
            raise wrong("expected eligible_age to be shorter than forced_age")
        return self


class Renewals(Block):
    """A lease that lives on storage alone: its length, and how often it is renewed."""

    lease: fields.Period
    renewal: fields.Period

    @model_validator(mode="after")
    def _outlasts_renewals(self) -> Self:
        if self.renewal >= self.lease:
            raise wrong("expected renewal to be shorter than lease")
        return self


class Unreachable(Renewals):
    """A standby exists but cannot be reached."""

    lease: fields.Period = 1.9
    renewal: fields.Period = 1.0


class Alone(Renewals):
    """There is no standby."""

    lease: fields.Period = 15.0
    renewal: fields.Period = 5.0


class LeaderElection(Block):
    """Timings of leadership. A store may demand a longer time between two writes of the lease; it gets it."""

    heartbeat: fields.Period = Field(default=0.1, description="between two heartbeats to the standbys")
    promise: fields.Period | None = Field(
        default=None,
        description="so long a standby that answered keeps still; default: 1s, or longer for slow heartbeats",
    )
    crash_wait: fields.Period | None = Field(
        default=None,
        description="the same, when the leader's connection is reset and its port refused; default: three heartbeats",
    )
    lease: fields.Period = Field(default=15.0, description="what strangers wait while there are standbys")
    renewal: fields.Period = Field(default=10.0, description="in storage, while all standbys answer")
    urgent_renewal: fields.Period = Field(default=0.5, description="in storage, when one does not answer")
    member_timeout: fields.Period = Field(default=30.0, description="a standby silent for so long is dropped")
    unreachable: Unreachable = Unreachable()
    alone: Alone = Alone()

    @property
    def promise_seconds(self) -> float:
        return self.promise if self.promise is not None else max(1.0, 5 * self.heartbeat, 2 * self.urgent_renewal)

    @property
    def crash_wait_seconds(self) -> float:
        return self.crash_wait if self.crash_wait is not None else min(self.promise_seconds, 3 * self.heartbeat)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        promise, crash_wait = self.promise_seconds, self.crash_wait_seconds
        three = 3 * self.heartbeat - 1e-9  # decimal fractions are not exact
        wants = (
            (three <= promise, "at least three heartbeats in a promise"),
            (three <= crash_wait <= promise, "crash_wait to be from three heartbeats to the promise"),
            (self.urgent_renewal < promise, "urgent_renewal to be shorter than promise"),
            (
                self.urgent_renewal <= self.renewal < self.lease,
                "renewal to be at least urgent_renewal and shorter than lease",
            ),
            (self.member_timeout > promise, "member_timeout to be longer than promise"),
        )
        if missed := [want for holds, want in wants if not holds]:
            raise wrong(f"expected {'; '.join(missed)}")
        return self


class ErrorExitJitter(Block):
    """The random wait before a fatal exit, so that servers that fail together do not restart together."""

    min_delay: fields.Duration = 10.0
    max_delay: fields.Duration = 40.0

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min_delay > self.max_delay:
            raise wrong("expected min_delay to be at most max_delay")
        return self


class Identity(Block):
    """The certificates that agents and operators identify themselves with: how long they live, and what follows when two
    agents use one."""

    agent_ttl: fields.Life = 30 * 86_400.0
    operator_ttl: fields.Life = 365 * 86_400.0
    on_clone: Literal["alarm", "replace"] = Field(
        default="alarm", description="when two live agents have one identity: only tell, or replace the instance too"
    )


class Shard(Block):
    id: fields.ShardId | None = None
    infra: Infra
    bind: BindAddresses = BindAddresses()
    advertise: AdvertisedAddresses = AdvertisedAddresses()
    leader_network: LeaderNetwork | None = None
    subnet_pools: Mapping[fields.Name, tuple[fields.Filled, ...]] = Field(default_factory=dict)
    dynamic_subnet_pools: tuple[fields.Text, ...] | None = Field(
        default=None, description="the pools that groups made through the API may use; left out: all"
    )
    request_timeout: fields.Period = 30.0
    create_rate_limit: fields.Duration = 0.0
    create_concurrency: Annotated[StrictInt, Field(ge=1, le=1000)] = 32
    health_check_interval: fields.Duration = 60.0
    health: Health = Health()
    default_drain_timeout: fields.Duration = 300.0
    image_refresh_interval: fields.Period = 6 * 3600.0
    userdata_hosts: tuple[fields.HostName, ...] = Field(
        default=(), description="hosts that userdata may be fetched from although their addresses are private"
    )
    shutdown_timeout: fields.Period = 10.0
    garbage_collection: GarbageCollection = GarbageCollection()
    expiry: Expiry = Expiry()
    leader_election: LeaderElection = LeaderElection()
    error_exit_jitter: ErrorExitJitter = ErrorExitJitter()
    identity: Identity = Identity()
