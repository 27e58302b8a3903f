"""Secrets of the cluster. Values go from and to the caller, and nowhere else."""

from nstance.admin import failures
from nstance.admin.cluster.opened import opened
from nstance.admin.options import OBJECT_STORAGE, Target
from nstance.secretstore import port

MAX_VALUE = port.MAX_VALUE


def check_name(name: str) -> None:
    """Before anybody is asked for a value."""
    port.check_name(name)


async def put(target: Target, name: str, value: bytes) -> None:
    if not value:
        raise failures.Refused(f"the value of secret {name!r} is empty; nothing was stored")
    port.check_value(value)
    async with opened(target, create=True) as cluster:
        secrets = await cluster.secrets()
        if _is_kept(target):
            await secrets.put(name, value)


async def get(target: Target, name: str) -> bytes:
    async with opened(target) as cluster:
        return await (await cluster.secrets()).get(name)


async def names(target: Target) -> list[port.SecretName]:
    async with opened(target) as cluster:
        return await (await cluster.secrets()).list()


async def remove(target: Target, name: str) -> None:
    """A name that is not there is a mistake worth telling, although the store would not mind."""
    async with opened(target) as cluster:
        secrets = await cluster.secrets()
        if port.check_name(name) not in await secrets.list():
            raise failures.Refused(
                f"there is no secret {name!r}; `nstance-admin cluster secret list` shows what there is"
            )
        if _is_kept(target):
            await secrets.delete(name)


def _is_kept(target: Target) -> bool:
    """Other stores than the bucket cannot be rehearsed."""
    return not target.dry_run or target.secrets == OBJECT_STORAGE
