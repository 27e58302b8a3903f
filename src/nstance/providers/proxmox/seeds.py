"""Files on the ISO storage: the userdata of each VM, and tombstones of deleted IDs.

Proxmox takes no snippets by its API and remembers no VM that was destroyed. So the userdata is an uploaded ISO, and so is
the tombstone that makes a late create of a deleted ID fail, on whatever server it runs. Tombstones are removed after a
day: no request lives that long.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from nstance.clock import Clock
from nstance.model.ids import InstanceId
from nstance.providers import errors, seed_iso
from nstance.providers.proxmox.client import ProxmoxClient
from nstance.providers.proxmox.faults import NoStorageError

TOMBSTONE_SECONDS = 24 * 3600.0
TOMBSTONE_NODES = 3
SWEEP_SECONDS = 3600.0
_TOMBSTONE = b"deleted\n"


def seed_name(id: InstanceId) -> str:
    return f"nstance-{id}.iso"


def tombstone_name(id: InstanceId) -> str:
    return f"nstance-deleted-{id}.iso"


class Seeds:
    def __init__(self, client: ProxmoxClient, clock: Clock, storage: str) -> None:
        self._client, self._clock = client, clock
        self.storage = storage
        self._swept = 0.0

    def volume(self, id: InstanceId) -> str:
        return f"{self.storage}:iso/{seed_name(id)}"

    async def upload(self, node: str, id: InstanceId, userdata: bytes, network_config: bytes) -> None:
        image = seed_iso.seed(id, userdata, network_config=network_config)
        await self._client.upload_iso(node, self.storage, seed_name(id), image)

    async def bury(self, nodes: Sequence[str], id: InstanceId) -> None:
        """On several nodes, as long as one of them takes it: the node that has the only tombstone may go offline."""
        nodes = nodes[:TOMBSTONE_NODES]
        uploads = (self._client.upload_iso(node, self.storage, tombstone_name(id), _TOMBSTONE) for node in nodes)
        answers = await asyncio.gather(*uploads, return_exceptions=True)
        problems = [each for each in answers if isinstance(each, BaseException)]
        for problem in problems:
            if not isinstance(problem, errors.ProviderError) or len(problems) == len(nodes):
                raise problem

    async def is_buried(self, nodes: Sequence[str], id: InstanceId) -> bool:
        """Looks on every node, because the storage may be another one on each."""
        found = await asyncio.gather(*(self._names(node) for node in nodes))
        return any(tombstone_name(id) in names for names in found)

    async def remove(self, node: str, id: InstanceId) -> None:
        """A seed that is not there is success."""
        if seed_name(id) in await self._names(node):
            await self._remove(node, seed_name(id))

    async def sweep(self, nodes: Sequence[str]) -> set[InstanceId]:
        """Now and then removes old tombstones, and seeds of deleted IDs that a create wrote too late. Returns the IDs that have
        a tombstone."""
        now = self._clock.wall()
        if now - self._swept < SWEEP_SECONDS:
            return set()
        self._swept = now
        buried: set[InstanceId] = set()
        for node in nodes:
            names = await self._names(node)
            for name, created in names.items():
                id = InstanceId(name.removeprefix("nstance-").removesuffix(".iso"))
                is_old = name.startswith("nstance-deleted-") and now - created > TOMBSTONE_SECONDS
                if is_old or tombstone_name(id) in names:
                    await self._remove(node, name)
            prefix = tombstone_name(InstanceId("")).removesuffix(".iso")
            buried |= {
                InstanceId(name.removeprefix(prefix).removesuffix(".iso")) for name in names if name.startswith(prefix)
            }
        return buried

    async def _remove(self, node: str, name: str) -> None:
        permission = f"Datastore.Allocate on /storage/{self.storage}"
        path = f"/nodes/{node}/storage/{self.storage}/content/{self.storage}:iso/{name}"
        upid = await self._client.change("DELETE", path, permission=permission)
        if upid:
            await self._client.finish_task(str(upid), permission=permission)

    async def _names(self, node: str) -> dict[str, float]:
        """Names of our ISOs on a node, and when they were written."""
        try:
            found: Any = await self._client.get(
                f"/nodes/{node}/storage/{self.storage}/content",
                permission=f"Datastore.Audit on /storage/{self.storage}",
                content="iso",
            )
        except NoStorageError:
            return {}  # nothing of ours was ever written there
        if not isinstance(found, list):
            raise errors.UnavailableError(f"expected a list of the ISOs on node {node}, found something else")
        names = ((str(each.get("volid", "")).rpartition("/")[2], each.get("ctime") or 0.0) for each in found)
        return {name: float(created) for name, created in names if name.startswith("nstance-")}
