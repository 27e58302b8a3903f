"""A shard's config.jsonc: checked before it is written, and written only over the version that was read.

The changes are computed from resolved groups, dynamic ones included, so they are what the server will do.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from nstance.admin import errors, output
from nstance.admin.cluster.storage import ClusterStorage, open_storage
from nstance.admin.options import Target
from nstance.config import dynamic as dynamics
from nstance.config import load, resolve, storage_keys
from nstance.config.checks import warnings
from nstance.config.dynamic import DynamicGroups
from nstance.config.errors import ConfigError
from nstance.config.model.settings import Settings
from nstance.config.resolve import Resolved
from nstance.model.ids import GroupKey, ShardId
from nstance.objects import errors as storage
from nstance.objects import settle
from nstance.objects.port import Key, Stored

Groups = Mapping[GroupKey, Resolved]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    key: Key
    is_first: bool  # there was no config before
    is_same: bool  # byte by byte
    is_compared: bool  # the previous config was valid, so the differences mean something
    blocks: tuple[str, ...]  # changed ones, other than groups
    groups: tuple[output.Row, ...]
    warnings: tuple[str, ...]  # valid, but probably a mistake


async def get(target: Target, shard: ShardId) -> bytes:
    key = storage_keys.config(shard)
    async with open_storage(target) as place:
        stored = await settle.read(place.store, key)
        if stored is None:
            raise errors.CommandError(f"there is no {key} in {place.store!r}; write one with `cluster config put`")
        return stored.body


async def put(target: Target, shard: ShardId, body: bytes, *, source: str, dry_run: bool) -> Outcome:
    """Raises ConfigError with all problems before anything is read or written."""
    settings = load.load(body, shard=shard, source=source)
    key = storage_keys.config(shard)
    async with open_storage(replace(target, dry_run=dry_run), create=True) as place:
        owner = await place.owner()  # None before the first server has created a CA
        if owner not in (None, settings.cluster.id):
            raise errors.CommandError(
                f"{source} is of cluster {settings.cluster.id}, but the storage belongs to {owner}"
            )
        current = await settle.read(place.store, key)
        dynamic = await _read_dynamic(place, shard)
        groups = _resolve(settings, dynamic, shard)
        before = None if current is None else _load(current.body, shard)
        if before is not None and before.cluster.id != settings.cluster.id:
            raise errors.CommandError(
                f"{source} is of cluster {settings.cluster.id}, the current config of {before.cluster.id}; "
                "a shard cannot change its cluster"
            )
        outcome = Outcome(
            key=key,
            is_first=current is None,
            is_same=current is not None and current.body == body,
            is_compared=current is None or before is not None,
            blocks=tuple(_changed_blocks(before, settings)),
            groups=tuple(_group_changes(_resolve_or_empty(before, dynamic), groups)),
            warnings=tuple(
                map(str, load.locate(body, warnings.find_warnings(settings, groups, dynamic), source=source))
            ),
        )
        if not dry_run and not outcome.is_same:
            await _write(place, key, body, current)
        return outcome


async def _read_dynamic(place: ClusterStorage, shard: ShardId) -> DynamicGroups:
    key = storage_keys.groups(shard)
    stored = await settle.read(place.store, key)
    return DynamicGroups() if stored is None else dynamics.parse(stored.body, source=key)


def _resolve(settings: Settings, dynamic: DynamicGroups, shard: ShardId) -> Groups:
    try:
        return resolve.resolve_groups(settings, dynamic)
    except ConfigError as error:
        raise errors.CommandError(
            f"the groups made through the API ({storage_keys.groups(shard)}) do not fit this config:\n{error}"
        ) from error


async def _write(place: ClusterStorage, key: Key, body: bytes, current: Stored | None) -> None:
    try:
        if current is not None:
            await settle.replace(place.store, key, body, seen=current)
        elif (await settle.create_or_adopt(place.store, key, body)).body != body:
            raise storage.ConflictError(key)
    except storage.ConflictError as error:
        raise errors.CommandError(
            f"{key} was changed in the meantime, so nothing was written; check the new version, then try again"
        ) from error


def _load(body: bytes, shard: ShardId) -> Settings | None:
    """None for an invalid config, which cannot be compared."""
    try:
        return load.load(body, shard=shard)
    except ConfigError:
        return None


def _resolve_or_empty(settings: Settings | None, dynamic: DynamicGroups) -> Groups:
    try:
        return {} if settings is None else resolve.resolve_groups(settings, dynamic)
    except ConfigError:
        return {}


def _changed_blocks(before: Settings | None, after: Settings) -> Iterator[str]:
    for field in fields(Settings):
        if before is not None and field.name != "groups" and getattr(before, field.name) != getattr(after, field.name):
            yield field.name


def _group_changes(before: Groups, after: Groups) -> Iterator[output.Row]:
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        was, size = old.group.size if old else None, new.group.size if new else None
        changes = list(_difference(old, new))
        if changes:
            yield {"group": str(key), "was": was, "size": size, "changes": changes}


def _difference(old: Resolved | None, new: Resolved | None) -> Iterator[str]:
    if new is None:
        yield "removed: its instances will be deleted"
    elif old is None:
        yield "added"
    elif old.etag != new.etag:
        if old.group.size != new.group.size:
            yield "resized"
        if old.group.infra_hash != new.group.infra_hash:
            yield "its instances will be replaced"
        if old.group.runtime_hash != new.group.runtime_hash:
            yield "new files will be pushed"
        if _other_settings(old) != _other_settings(new):
            yield "other settings"


def _other_settings(resolved: Resolved) -> tuple[object, ...]:
    group = resolved.group
    return (
        group.drain_timeout,
        group.registration_timeout,
        group.load_balancers,
        group.max_surge,
        group.max_unavailable,
        group.subnets,
        group.template,
        group.prefer,
        group.capacity_retry,
    )
