"""The cluster's secrets. Values are passed only to and from the caller."""

from nstance.admin import errors
from nstance.admin.cluster.storage import open_storage
from nstance.admin.options import OBJECT_STORAGE, Target
from nstance.secretstore import port

MAX_VALUE = port.MAX_VALUE


def check_name(name: str) -> None:
    """Call it before prompting for a value."""
    port.check_name(name)


async def put(target: Target, name: str, value: bytes) -> None:
    if not value:
        raise errors.CommandError(f"the value of secret {name!r} is empty; nothing was stored")
    port.check_value(value)
    async with open_storage(target, create=True) as cluster:
        secrets = await cluster.secrets()
        if _is_writable(target):
            await secrets.put(name, value)


async def get(target: Target, name: str) -> bytes:
    async with open_storage(target) as cluster:
        return await (await cluster.secrets()).get(name)


async def names(target: Target) -> list[port.SecretName]:
    async with open_storage(target) as cluster:
        return await (await cluster.secrets()).list()


async def remove(target: Target, name: str) -> None:
    """Raises CommandError for a missing name, which the store itself would ignore."""
    async with open_storage(target) as cluster:
        secrets = await cluster.secrets()
        if port.check_name(name) not in await secrets.list():
            raise errors.CommandError(
                f"there is no secret {name!r}; `nstance-admin cluster secret list` shows what there is"
            )
        if _is_writable(target):
            await secrets.delete(name)


def _is_writable(target: Target) -> bool:
    """A dry run replaces only the bucket, so other stores must not be written."""
    return not target.dry_run or target.secrets == OBJECT_STORAGE
