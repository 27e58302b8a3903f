"""Free addresses in subnets."""

from nstance.providers import errors
from nstance.providers.gcp.compute import Compute
from nstance.providers.gcp.launches import subnet_path


class Subnets:
    """`providers.port.SubnetCapacity`."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute

    async def free_addresses(self, subnet: str) -> int | None:
        path = subnet_path(subnet, await self._compute.project(), self._compute.region)
        try:
            found = await self._compute.call(
                "compute.subnetworks.get", "GET", path, query={"views": "WITH_UTILIZATION"}
            )
        except errors.NotFoundError:
            return None  # a create there says so, with its path
        ranges = (found.get("utilizationDetails") or {}).get("ipv4Utilizations") or ()
        free = [each.get("totalFreeIp") for each in ranges if not each.get("rangeName")]
        return int(free[0]) if free and free[0] is not None else None
