"""Unmanaged instance groups, which Google's load balancers have as backends.

Google does not say whether a VM that left a group still has connections, so nothing waits for them here.
"""

from collections.abc import Mapping

from nstance.model.ids import ProviderId
from nstance.providers import errors
from nstance.providers.gcp.compute import Compute
from nstance.providers.gcp.faults import reason_of
from nstance.providers.port import LoadBalancer

FINISH_SECONDS = 25.0


class InstanceGroups:
    """`providers.port.LoadBalancers`."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute

    async def list_targets(self, balancer: LoadBalancer) -> Mapping[ProviderId, bool]:
        path = f"{{zone}}/instanceGroups/{balancer.instance_group_name}/listInstances"
        members = await self._compute.list(
            "compute.instanceGroups.get", path, method="POST", body={"instanceState": "ALL"}
        )
        return {ProviderId(str(each.get("instance")).rpartition("/")[2]): True for each in members}

    async def is_draining(self, balancer: LoadBalancer, provider_id: ProviderId) -> bool:
        return False

    async def register_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        await self._change_members(balancer, "addInstances", provider_id, done="memberAlreadyExists")

    async def deregister_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        await self._change_members(balancer, "removeInstances", provider_id, done="memberNotFound")

    async def _change_members(self, balancer: LoadBalancer, verb: str, provider_id: ProviderId, *, done: str) -> None:
        """`done`: Google's word for what is so already."""
        project = await self._compute.project()
        link = f"projects/{project}/zones/{self._compute.zone}/instances/{provider_id}"
        permission = "compute.instanceGroups.update"
        path = f"{{zone}}/instanceGroups/{balancer.instance_group_name}/{verb}"
        try:
            operation = await self._compute.call(permission, "POST", path, body={"instances": [{"instance": link}]})
            await self._compute.finish(operation, permission, seconds=FINISH_SECONDS)
        except (errors.PermanentError, errors.NotFoundError) as problem:
            # A VM that is gone is no member either; what else is wrong shows when the members are listed.
            is_member = provider_id in await self.list_targets(balancer)
            if reason_of(problem) != done and is_member == (verb == "removeInstances"):
                raise
