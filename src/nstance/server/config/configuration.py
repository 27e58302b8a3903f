"""The configuration of a shard and its dynamic groups: loaded, checked and resolved as one consistent value.

A new configuration replaces the old one completely or not at all. The traps: without a file of dynamic groups the VMs of
all that were there would be deleted, so a file that was there before and is missing now is an error. And parsing a large
file takes seconds, in which a leader must renew its lease, so it is done in a thread.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nstance.config import dynamic as dynamics
from nstance.config import jsonc, load, storage_keys
from nstance.config import overrides as overriding
from nstance.config import policy as policies
from nstance.config import resolve as resolving
from nstance.config.addresses import Service
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError, Problem
from nstance.config.model.cluster import Secrets
from nstance.config.model.settings import Settings
from nstance.config.resolve import Resolved
from nstance.core.election import Timings
from nstance.model.group import Policy
from nstance.model.ids import GroupKey, ShardId
from nstance.model.prices import Prices
from nstance.objects import errors
from nstance.objects.port import ObjectStore, Version

READ_TIMEOUT_SECONDS = 30.0
MAX_INLINE_BYTES = 64 * 1024  # what is larger is parsed in a thread: it takes a noticeable part of a heartbeat


class NoConfigurationError(Exception):
    """There is none, or it is not valid. The message names all problems. The path of a problem in a group starts with
    `groups.{tenant}`, whichever file the group is in; that of a problem of `groups.jsonc` itself is its key."""

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems

    def on_one_line(self) -> str:
        """For a log."""
        return "; ".join(str(self).splitlines()).replace(":; ", ": ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    settings: Settings
    dynamic: DynamicGroups
    groups: Mapping[GroupKey, Resolved]
    policy: Policy
    prices: Prices | None
    version: Version  # of config.jsonc
    dynamic_version: Version | None  # of groups.jsonc; None if there is none
    size: int


async def read(store: ObjectStore, shard: ShardId, *, before: Configuration | None = None) -> Configuration:
    """From storage. `before`: what was read last. Raises NoConfigurationError and storage errors."""
    key = storage_keys.config(shard)
    async with asyncio.timeout(READ_TIMEOUT_SECONDS):
        try:
            stored, (dynamic, dynamic_version) = await asyncio.gather(
                store.get(key, limit=jsonc.MAX_BYTES), _dynamic(store, shard, before)
            )
        except errors.ObjectTooLargeError as problem:
            raise NoConfigurationError(f"{key} is not valid: {problem}") from problem
        except errors.NotFoundError:
            raise NoConfigurationError(
                f"there is no configuration at {key}; put one there with `nstance-admin cluster config put --shard {shard}`"
            ) from None

    def load_all() -> Configuration:
        settings = parse(stored.body, shard=shard, source=key)
        return Configuration(
            settings=settings,
            dynamic=dynamic,
            groups=resolve(settings, dynamic),
            policy=policies.make_policy(settings),
            prices=settings.shard.prices.make() if settings.shard.prices is not None else None,
            version=stored.version,
            dynamic_version=dynamic_version,
            size=len(stored.body),
        )

    return await asyncio.to_thread(load_all) if len(stored.body) > MAX_INLINE_BYTES else load_all()


async def read_groups(store: ObjectStore, shard: ShardId) -> DynamicGroups:
    """Only the dynamic groups. Raises NoConfigurationError and storage errors."""
    async with asyncio.timeout(READ_TIMEOUT_SECONDS):
        return (await _dynamic(store, shard, None))[0]


async def with_groups(store: ObjectStore, shard: ShardId, now: Configuration) -> Configuration:
    """The same settings with the newest dynamic groups. Raises NoConfigurationError and storage errors."""
    async with asyncio.timeout(READ_TIMEOUT_SECONDS):
        dynamic, version = await _dynamic(store, shard, now)
    return replace(now, dynamic=dynamic, groups=resolve(now.settings, dynamic), dynamic_version=version)


def parse(body: bytes, *, shard: ShardId | None, source: str) -> Settings:
    try:
        return load.load(body, shard=shard, source=source)
    except ConfigError as error:
        raise NoConfigurationError(f"{source} is not valid:\n{error}", error.problems) from error


def resolve(settings: Settings, dynamic: DynamicGroups) -> Mapping[GroupKey, Resolved]:
    try:
        return resolving.resolve_groups(settings, dynamic)
    except ConfigError as error:
        raise NoConfigurationError(
            f"the dynamic groups do not fit the configuration:\n{error}", _of_groups(error.problems, "groups")
        ) from error


async def _dynamic(
    store: ObjectStore, shard: ShardId, before: Configuration | None
) -> tuple[DynamicGroups, Version | None]:
    key = storage_keys.groups(shard)
    try:
        stored = await store.get(key, limit=dynamics.MAX_BYTES)
    except errors.ObjectTooLargeError as problem:
        large = Problem(key, 0, 0, str(problem))
        raise NoConfigurationError(str(large), (large,)) from problem
    except errors.NotFoundError:
        if before is not None and before.dynamic_version is not None:
            lost = Problem(
                key, 0, 0, "expected the file that was there before: put it back, or {} for no dynamic groups"
            )
            raise NoConfigurationError(str(lost), (lost,)) from None
        return DynamicGroups(), None
    try:
        return dynamics.parse(stored.body, source=key), stored.version
    except ConfigError as error:
        raise NoConfigurationError(f"{key} is not valid:\n{error}", _of_groups(error.problems, key)) from error


def _of_groups(problems: tuple[Problem, ...], source: str) -> tuple[Problem, ...]:
    """A problem of the whole file has its name instead of a path."""
    return tuple(p if p.path == source else replace(p, path=f"groups.{p.path}") for p in problems)


def overridden(configuration: Configuration, keys: Iterable[GroupKey]) -> list[str]:
    """For people: settings of these groups in the file that have no effect because the API overrides them."""
    return [
        f"group {key}: {overriding.describe(key, each)}"
        for key in keys
        if key in configuration.settings.groups and (dynamic := configuration.dynamic.groups.get(key)) is not None
        for each in overriding.list_overrides(dynamic, configuration.groups[key].file)
        if each.hides_file
    ]


def needs_restart(booted: Settings, now: Settings) -> list[str]:
    """Settings that differ from those that the process started with, and that need a restart."""
    settings: dict[str, tuple[Any, Any]] = {
        "cluster.storage": (booted.cluster.storage, now.cluster.storage),
        "cluster.secrets": (_without_keys(booted.cluster.secrets), _without_keys(now.cluster.secrets)),
        "shard.infra": (booted.shard.infra, now.shard.infra),
        "shard.leader_election": (booted.shard.leader_election, now.shard.leader_election),
    }
    for block in ("bind", "advertise"):
        old, new = getattr(booted.shard, block).by_service(), getattr(now.shard, block).by_service()
        settings |= {f"shard.{block}.{service.key}": (old.get(service), new.get(service)) for service in Service}
    return [name for name, (old, new) in settings.items() if old != new]


def _without_keys(secrets: Secrets) -> Secrets:
    """Servers follow the places of encryption keys."""
    return secrets.model_copy(update={"encryption_key": None, "old_encryption_keys": ()})


def timings(settings: Settings) -> Timings:
    election = settings.shard.leader_election
    return Timings(
        heartbeat=election.heartbeat,
        promise=election.promise_seconds,
        crash_wait=election.crash_wait_seconds,
        fresh=2 * election.heartbeat,
        renew_with_members=election.renewal,
        length_with_members=election.lease,
        renew_doubtful=election.urgent_renewal,
        renew_standby=election.unreachable.renewal,
        length_standby=election.unreachable.lease,
        renew_alone=election.alone.renewal,
        length_alone=election.alone.lease,
        member_silence=election.member_timeout,
    )
