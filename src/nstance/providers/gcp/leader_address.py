"""The shard's fixed address: an alias IP of this server's first network interface.

Its old holder, which may hang, loses it first. Each change names the fingerprint of the interface that was seen: if somebody
else has changed it, Google refuses, and it is looked at again.
"""

from nstance.gcp.client import Answer
from nstance.providers import errors
from nstance.providers.gcp.compute import Compute
from nstance.providers.gcp.faults import reason_of, status_of, translated
from nstance.providers.port import FixedAddress

LOOK_SECONDS = 0.5
MAX_LOOKS = 20
FINISH_SECONDS = 25.0
_IN_USE = ("IP_IN_USE_BY_ANOTHER_RESOURCE", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "ipInUseByAnotherResource")
_CHANGED = ("CONDITION_NOT_MET", "conditionNotMet", "INVALID_FINGERPRINT")
_UPDATE = "compute.instances.updateNetworkInterface"


class AliasAddress:
    """`providers.port.LeaderAddress`."""

    def __init__(self, compute: Compute, address: FixedAddress) -> None:
        self._compute = compute
        self._range = f"{address.ip4}/32"
        self._own = ""  # the path of this server's VM, which never changes

    async def assign_leader_address(self) -> None:
        own = await self._own_path()
        for _ in range(MAX_LOOKS):
            instance = await self._compute.call("compute.instances.get", "GET", own)
            if self._has_alias(instance):
                return
            try:
                await self._set_aliases(own, instance, [*_aliases(instance), {"ipCidrRange": self._range}])
                return
            except errors.PermanentError as problem:
                if reason_of(problem) in _IN_USE:
                    await self._take_away(own)
                elif status_of(problem) != 412 and reason_of(problem) not in _CHANGED:
                    raise
            await self._compute.clock.sleep(LOOK_SECONDS)
        raise errors.UnavailableError(f"{self._range} did not become free within {MAX_LOOKS * LOOK_SECONDS:.0f} s")

    async def release_leader_address(self) -> None:
        own = await self._own_path()
        for _ in range(MAX_LOOKS):
            instance = await self._compute.call("compute.instances.get", "GET", own)
            if not self._has_alias(instance) or await self._remove_alias(own, instance):
                return
            await self._compute.clock.sleep(LOOK_SECONDS)
        raise errors.UnavailableError(f"the network interface of this server changes all the time: {self._range} stays")

    async def _take_away(self, own: str) -> None:
        """From the VM that has it, in any zone."""
        for instance in await self._compute.list("compute.instances.list", "aggregated/instances"):
            link = str(instance.get("selfLink"))
            path = link[link.find("projects/") :]
            if path != own and self._has_alias(instance):
                await self._remove_alias(path, instance)

    async def _remove_alias(self, path: str, instance: Answer) -> bool:
        """False: the interface has changed meanwhile."""
        try:
            kept = [each for each in _aliases(instance) if each.get("ipCidrRange") != self._range]
            await self._set_aliases(path, instance, kept)
        except errors.NotFoundError:
            return True  # the VM is gone, and its addresses with it
        except errors.PermanentError as problem:
            if status_of(problem) != 412 and reason_of(problem) not in _CHANGED:
                raise
            return False
        return True

    async def _set_aliases(self, path: str, instance: Answer, aliases: list[Answer]) -> None:
        interface = _interface(instance)
        operation = await self._compute.call(
            _UPDATE,
            "PATCH",
            f"{path}/updateNetworkInterface",
            query={"networkInterface": str(interface.get("name"))},
            body={"fingerprint": interface.get("fingerprint"), "aliasIpRanges": aliases},
        )
        await self._compute.finish(operation, _UPDATE, seconds=FINISH_SECONDS)

    def _has_alias(self, instance: Answer) -> bool:
        return any(each.get("ipCidrRange") in (self._range, self._range[:-3]) for each in _aliases(instance))

    async def _own_path(self) -> str:
        if not self._own:
            with translated("the metadata server", changes=False):
                metadata = self._compute.client.metadata
                project, zone, name = await metadata.project(), await metadata.zone(), await metadata.instance_name()
                self._own = f"projects/{project}/zones/{zone}/instances/{name}"
        return self._own


def _interface(instance: Answer) -> Answer:
    found: list[Answer] = instance.get("networkInterfaces") or [{}]
    return found[0]


def _aliases(instance: Answer) -> list[Answer]:
    return list(_interface(instance).get("aliasIpRanges") or ())
