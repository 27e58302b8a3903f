"""Free addresses in subnets."""

from nstance.aws.client import EC2, AwsClient
from nstance.aws.encoding import entries
from nstance.providers import errors
from nstance.providers.aws.faults import translated


class Subnets:
    """`providers.port.SubnetCapacity`."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client

    async def free_addresses(self, subnet: str) -> int | None:
        try:
            with translated("ec2:DescribeSubnets", changes=False):
                answer = await self._client.query(EC2, "DescribeSubnets", {"SubnetId": [subnet]})
        except errors.NotFoundError:
            return None  # a create there says so, with its path
        counts = [each.get("availableIpAddressCount") for each in entries(answer, "subnetSet")]
        return int(counts[0]) if counts and counts[0] else None
