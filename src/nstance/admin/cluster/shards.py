"""Which shards a bucket holds, and which tenants they know."""

import dataclasses
from collections.abc import Sequence

from nstance.admin import failures
from nstance.admin.cluster.opened import Opened, opened
from nstance.config import load, storage_keys
from nstance.config.errors import ConfigError
from nstance.model import ids
from nstance.model.ids import ShardId, TenantId
from nstance.objects import settle
from nstance.objects.port import ObjectStore

_ROOT = "shard/"


async def names(store: ObjectStore) -> list[ShardId]:
    """One listing per shard, however long its journal is."""
    found: list[ShardId] = []
    after = ""
    while True:
        first = await _first(store, after)
        if first is None:
            return found
        name, below, _ = first.removeprefix(_ROOT).partition("/")
        if below and ids.is_name(name):
            found.append(ShardId(name))
        after = f"{_ROOT}{name}/~"  # sorts behind everything that a shard has


async def _first(store: ObjectStore, after: str) -> str | None:
    async for key in store.list(_ROOT, after=after):
        return key
    return None


async def check_tenant(cluster: Opened, tenant: TenantId, *, buckets: Sequence[str]) -> None:
    """Refuses a tenant that no shard knows: its operator could do nothing. `buckets`: where else shards keep theirs."""
    if tenant == ids.DEFAULT_TENANT:
        return
    looked, unread = [], []
    for bucket in dict.fromkeys((cluster.target.bucket, *buckets)):
        async with opened(dataclasses.replace(cluster.target, bucket=bucket)) as place:
            for shard in await names(place.store):
                stored = await settle.read(place.store, storage_keys.config(shard))
                if stored is None:
                    continue
                try:
                    if tenant in load.load(stored.body, shard=shard).tenants:
                        return
                    looked.append(shard)
                except ConfigError:
                    unread.append(shard)
    where = f"looked at {', '.join(looked)}" if looked else "found no shard's config to look at"
    broken = f"; not valid: {', '.join(unread)}" if unread else ""
    raise failures.Refused(
        f"tenant {tenant} is configured in no shard ({where}{broken}); add it to `tenants` of a shard's config"
        " or name the bucket that has it with --shard-bucket"
    )
