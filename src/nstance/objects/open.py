"""From the configuration or the command line to a store. Client libraries are imported only when needed."""

from nstance import clock
from nstance.objects import errors, file, memory, wrapped
from nstance.objects.port import ObjectStore

PROVIDERS = ("s3", "gcs", "file", "memory")


def open_store(
    provider: str, *, bucket: str, prefix: str = "", region: str | None = None, endpoint: str | None = None
) -> ObjectStore:
    """For `file` the bucket is a directory. Raises PermissionDeniedError."""
    store = _open(provider, bucket, region, endpoint)
    return wrapped.PrefixedStore(store, prefix) if prefix.strip("/") else store


def _open(provider: str, bucket: str, region: str | None, endpoint: str | None) -> ObjectStore:
    if not bucket and provider != "memory":
        raise errors.PermissionDeniedError(
            f"storage {provider!r} needs a bucket{' (a directory)' if provider == 'file' else ''}"
        )
    match provider:
        case "s3":
            from nstance.objects import s3

            return s3.S3Store(bucket, region=region, endpoint=endpoint)
        case "gcs":
            from nstance.objects import gcs

            return gcs.GcsStore(bucket, endpoint_url=endpoint)
        case "file":
            return file.FileStore(bucket)
        case "memory":
            return memory.MemoryStore(clock.SystemClock())
        case _:
            raise errors.PermissionDeniedError(f"storage must be one of {', '.join(PROVIDERS)}, not {provider!r}")
