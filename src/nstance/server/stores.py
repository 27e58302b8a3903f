"""Opens the object storage that options and configuration name."""

from nstance.config.model.settings import Settings
from nstance.objects import errors
from nstance.objects.open import open_store
from nstance.objects.port import ObjectStore
from nstance.server.errors import FatalError
from nstance.server.options import Options


def open_shard_store(options: Options) -> ObjectStore:
    """Raises FatalError."""
    try:
        return open_store(options.storage, bucket=options.bucket, prefix=options.prefix)
    except (errors.StorageError, ValueError) as problem:
        raise FatalError(f"object storage cannot be opened: {problem}") from problem


def open_cluster_store(options: Options, settings: Settings, shard_store: ObjectStore) -> ObjectStore:
    """The shard's own, unless the configuration names another one."""
    storage = settings.cluster.storage
    if storage.provider is None and not storage.bucket:
        return shard_store
    return open_store(
        storage.provider or options.storage,
        bucket=storage.bucket or options.bucket,
        region=storage.region or None,
        endpoint=storage.endpoint or None,
    )
