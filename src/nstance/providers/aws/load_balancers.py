"""Target groups of AWS's load balancers (ELBv2).

A balancer of the configuration may name several target groups: an instance is a target when it is in all of them. One that
is deregistered keeps its connections for the group's deregistration delay; meanwhile it is draining and no target.
"""

import asyncio
from collections.abc import Mapping

from nstance.aws.client import ELB, AwsClient
from nstance.aws.encoding import entries
from nstance.model.ids import ProviderId
from nstance.providers import errors
from nstance.providers.aws.faults import code_of, translated
from nstance.providers.port import LoadBalancer

_DRAINING = "draining"


class TargetGroups:
    """`providers.port.LoadBalancers`."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client

    async def list_targets(self, balancer: LoadBalancer) -> Mapping[ProviderId, bool]:
        groups = await asyncio.gather(*(self._states(arn) for arn in balancer.target_group_arns))
        targets = [{id for id, state in group.items() if state != _DRAINING} for group in groups]
        return {id: all(id in group for group in targets) for group in targets for id in sorted(group)}

    async def is_draining(self, balancer: LoadBalancer, provider_id: ProviderId) -> bool:
        groups = await asyncio.gather(*(self._states(arn) for arn in balancer.target_group_arns))
        return any(group.get(provider_id) == _DRAINING for group in groups)

    async def _states(self, arn: str) -> dict[ProviderId, str]:
        with translated("elasticloadbalancing:DescribeTargetHealth", changes=False):
            answer = await self._client.query(ELB, "DescribeTargetHealth", {"TargetGroupArn": arn})
        return {
            ProviderId(str(each["Target"]["Id"])): str(each.get("TargetHealth", {}).get("State") or "")
            for each in entries(answer, "TargetHealthDescriptions")
        }

    async def register_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        for arn in balancer.target_group_arns:
            params = {"TargetGroupArn": arn, "Targets": [{"Id": provider_id}]}
            with translated("elasticloadbalancing:RegisterTargets", changes=True):
                await self._client.query(ELB, "RegisterTargets", params)

    async def deregister_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        for arn in balancer.target_group_arns:
            params = {"TargetGroupArn": arn, "Targets": [{"Id": provider_id}]}
            try:
                with translated("elasticloadbalancing:DeregisterTargets", changes=True):
                    await self._client.query(ELB, "DeregisterTargets", params)
            except errors.PermanentError as problem:
                if code_of(problem) != "InvalidTarget":  # it is no target: success
                    raise
