"""What the shard is told: its configuration and its dynamic groups, loaded, checked and resolved as one value.

A new configuration replaces the old one as a whole or not at all; whoever holds a `Configuration` holds a consistent one.
The traps: no file of dynamic groups means that there are none, and the VMs of all that were there would go. So a file that
was there before and is missing now is an error; who wants no groups writes an empty one. And to read a large file takes
seconds, in which a leader must renew its lease.
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
from nstance.config.model.settings import Settings
from nstance.config.resolve import Resolved
from nstance.core.election import Timings
from nstance.model.group import Policy
from nstance.model.ids import GroupKey, ShardId
from nstance.objects import errors
from nstance.objects.port import ObjectStore, Version

READ_TIMEOUT = 30.0
LARGE = 64 * 1024  # bytes that take a noticeable part of a heartbeat to read; these are read beside the event loop


class NoConfigurationError(Exception):
    """There is none, or it is not valid. The message says everything that is wrong with it; problems of groups have paths
    that start with `groups.{tenant}`, wherever the group was written; those of the whole of `groups.jsonc`, its key."""

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    settings: Settings
    dynamic: DynamicGroups
    groups: Mapping[GroupKey, Resolved]
    policy: Policy
    version: Version  # of config.jsonc
    dynamic_version: Version | None  # of groups.jsonc; None if there is none
    size: int


async def read(store: ObjectStore, shard: ShardId, *, before: Configuration | None = None) -> Configuration:
    """From the bucket. `before`: what was read last. Raises NoConfiguration, and storage errors."""
    key = storage_keys.config(shard)
    async with asyncio.timeout(READ_TIMEOUT):
        try:
            stored, said = await asyncio.gather(store.get(key, limit=jsonc.MAX_BYTES), _dynamic(store, shard, before))
        except errors.ObjectTooLargeError as problem:
            raise NoConfigurationError(f"{key} is not valid: {problem}") from problem
        except errors.NotFoundError:
            raise NoConfigurationError(
                f"there is no configuration at {key}; put one there with `nstance-admin cluster config put --shard {shard}`"
            ) from None
    dynamic, dynamic_version = said

    def understand() -> Configuration:
        settings = parse(stored.body, shard=shard, source=key)
        return Configuration(
            settings=settings,
            dynamic=dynamic,
            groups=resolve(settings, dynamic),
            policy=policies.make_policy(settings),
            version=stored.version,
            dynamic_version=dynamic_version,
            size=len(stored.body),
        )

    return await asyncio.to_thread(understand) if len(stored.body) > LARGE else understand()


async def read_groups(store: ObjectStore, shard: ShardId) -> DynamicGroups:
    """Only the dynamic groups. Raises NoConfiguration, and storage errors."""
    async with asyncio.timeout(READ_TIMEOUT):
        return (await _dynamic(store, shard, None))[0]


async def with_groups(store: ObjectStore, shard: ShardId, now: Configuration) -> Configuration:
    """The same settings with the newest dynamic groups. Raises NoConfiguration, and storage errors."""
    async with asyncio.timeout(READ_TIMEOUT):
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
    """What is wrong with the file as a whole has its name instead of a path."""
    return tuple(p if p.path == source else replace(p, path=f"groups.{p.path}") for p in problems)


def overridden(configuration: Configuration, keys: Iterable[GroupKey]) -> list[str]:
    """Settings of these groups in the file that have no effect because the API overrides them, for people."""
    return [
        f"group {key}: {overriding.describe(key, each)}"
        for key in keys
        if key in configuration.settings.groups and (told := configuration.dynamic.groups.get(key)) is not None
        for each in overriding.list_overrides(told, configuration.groups[key].file)
        if each.hides_file
    ]


def needs_restart(booted: Settings, now: Settings) -> list[str]:
    """Settings that differ from those that the process began with, and that only a new process follows."""
    kept: dict[str, tuple[Any, Any]] = {
        "cluster.storage": (booted.cluster.storage, now.cluster.storage),
        "cluster.secrets": (booted.cluster.secrets, now.cluster.secrets),
        "shard.infra": (booted.shard.infra, now.shard.infra),
        "shard.leader_election": (booted.shard.leader_election, now.shard.leader_election),
    }
    for block in ("bind", "advertise"):
        old, new = getattr(booted.shard, block).by_service(), getattr(now.shard, block).by_service()
        kept |= {f"shard.{block}.{service.key}": (old.get(service), new.get(service)) for service in Service}
    return [name for name, (old, new) in kept.items() if old != new]


def timings(settings: Settings) -> Timings:
    told = settings.shard.leader_election
    return Timings(
        heartbeat=told.heartbeat,
        promise=told.promise_seconds,
        crash_wait=told.crash_wait_seconds,
        fresh=2 * told.heartbeat,
        renew_with_members=told.renewal,
        length_with_members=told.lease,
        renew_doubtful=told.urgent_renewal,
        renew_standby=told.unreachable.renewal,
        length_standby=told.unreachable.lease,
        renew_alone=told.alone.renewal,
        length_alone=told.alone.lease,
        member_silence=told.member_timeout,
    )
