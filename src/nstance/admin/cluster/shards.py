"""The shards in a bucket, and their tenants."""

import dataclasses
from collections.abc import Sequence

from nstance.admin import errors
from nstance.admin.cluster.storage import ClusterStorage, open_storage
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
        after = f"{_ROOT}{name}/~"  # sorts after all keys of the shard


async def _first(store: ObjectStore, after: str) -> str | None:
    async for key in store.list(_ROOT, after=after):
        return key
    return None


async def check_tenant(cluster: ClusterStorage, tenant: TenantId, *, buckets: Sequence[str]) -> None:
    """Raises CommandError for a tenant that no shard has: its operator could do nothing. `buckets`: further ones."""
    if tenant == ids.DEFAULT_TENANT:
        return
    checked, invalid = [], []
    for bucket in dict.fromkeys((cluster.target.bucket, *buckets)):
        async with open_storage(dataclasses.replace(cluster.target, bucket=bucket)) as place:
            for shard in await names(place.store):
                stored = await settle.read(place.store, storage_keys.config(shard))
                if stored is None:
                    continue
                try:
                    if tenant in load.load(stored.body, shard=shard).tenants:
                        return
                    checked.append(shard)
                except ConfigError:
                    invalid.append(shard)
    where = f"checked {', '.join(checked)}" if checked else "found no shard's config"
    broken = f"; invalid: {', '.join(invalid)}" if invalid else ""
    raise errors.CommandError(
        f"tenant {tenant} is configured in no shard ({where}{broken}); add it to `tenants` of a shard's config"
        " or give the bucket that has it with --shard-bucket"
    )
