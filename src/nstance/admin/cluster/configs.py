"""A shard's config.jsonc: checked before it is written, and written only over what was looked at.

What will follow is told from the resolved groups, dynamic ones included, so that the answer is what the server will do.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from nstance.admin import failures, output
from nstance.admin.cluster.opened import Opened, opened
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
    first: bool  # there was no config before
    same: bool  # byte by byte
    compared: bool  # the config before was valid, so that the differences mean something
    blocks: tuple[str, ...]  # of the settings, groups apart
    groups: tuple[output.Row, ...]
    warnings: tuple[str, ...]  # what is valid and probably a mistake


async def get(target: Target, shard: ShardId) -> bytes:
    key = storage_keys.config(shard)
    async with opened(target) as place:
        stored = await settle.read(place.store, key)
        if stored is None:
            raise failures.Refused(f"there is no {key} in {place.store!r}; put one there with `cluster config put`")
        return stored.body


async def put(target: Target, shard: ShardId, body: bytes, *, source: str, dry_run: bool) -> Outcome:
    """Raises ConfigError with all problems, before anything is read or written."""
    settings = load.load(body, shard=shard, source=source)
    key = storage_keys.config(shard)
    async with opened(replace(target, dry_run=dry_run), create=True) as place:
        owner = await place.owner()  # before the first server has made a CA there is nobody to contradict
        if owner not in (None, settings.cluster.id):
            raise failures.Refused(f"{source} is of cluster {settings.cluster.id}, but the storage belongs to {owner}")
        present = await settle.read(place.store, key)
        said = await _dynamic(place, shard)
        groups = _resolved(settings, said, shard)
        before = None if present is None else _settings(present.body, shard)
        if before is not None and before.cluster.id != settings.cluster.id:
            raise failures.Refused(
                f"{source} is of cluster {settings.cluster.id}, the present config of {before.cluster.id}; "
                "a shard cannot change its cluster"
            )
        outcome = Outcome(
            key=key,
            first=present is None,
            same=present is not None and present.body == body,
            compared=present is None or before is not None,
            blocks=tuple(_blocks(before, settings)),
            groups=tuple(_changes(_groups(before, said), groups)),
            warnings=tuple(map(str, load.locate(body, warnings.find_warnings(settings, groups, said), source=source))),
        )
        if not dry_run and not outcome.same:
            await _write(place, key, body, present)
        return outcome


async def _dynamic(place: Opened, shard: ShardId) -> DynamicGroups:
    key = storage_keys.groups(shard)
    stored = await settle.read(place.store, key)
    return DynamicGroups() if stored is None else dynamics.parse(stored.body, source=key)


def _resolved(settings: Settings, said: DynamicGroups, shard: ShardId) -> Groups:
    try:
        return resolve.resolve_groups(settings, said)
    except ConfigError as error:
        raise failures.Refused(
            f"the groups made through the API ({storage_keys.groups(shard)}) do not fit this config:\n{error}"
        ) from error


async def _write(place: Opened, key: Key, body: bytes, present: Stored | None) -> None:
    try:
        if present is not None:
            await settle.replace(place.store, key, body, seen=present)
        elif (await settle.create_or_adopt(place.store, key, body)).body != body:
            raise storage.ConflictError(key)
    except storage.ConflictError as error:
        raise failures.Refused(
            f"{key} was written by somebody else meanwhile; nothing was changed: look at it, then put yours again"
        ) from error


def _settings(body: bytes, shard: ShardId) -> Settings | None:
    """None for a config that is not valid: then there is nothing to compare with."""
    try:
        return load.load(body, shard=shard)
    except ConfigError:
        return None


def _groups(settings: Settings | None, said: DynamicGroups) -> Groups:
    try:
        return {} if settings is None else resolve.resolve_groups(settings, said)
    except ConfigError:
        return {}


def _blocks(before: Settings | None, after: Settings) -> Iterator[str]:
    for field in fields(Settings):
        if before is not None and field.name != "groups" and getattr(before, field.name) != getattr(after, field.name):
            yield field.name


def _changes(before: Groups, after: Groups) -> Iterator[output.Row]:
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
        if _rest(old) != _rest(new):
            yield "other settings"


def _rest(resolved: Resolved) -> tuple[object, ...]:
    group = resolved.group
    return (
        group.drain_timeout,
        group.registration_timeout,
        group.load_balancers,
        group.max_surge,
        group.max_unavailable,
        group.subnets,
        group.template,
    )
