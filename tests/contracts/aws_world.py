"""AWS as a place where VMs live: moto behind the strict stand-in."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from nstance.aws.encoding import entries
from nstance.clock import SystemClock
from nstance.dev.aws.moto import AMI, Moto
from nstance.dev.aws.rules import OUTAGE, Rules
from nstance.dev.aws.stand_in import StandIn
from nstance.model.ids import InstanceId
from nstance.providers import port
from nstance.providers.aws.provider import AwsProvider, AwsSettings, open_aws
from nstance.providers.port import FixedAddress, LoadBalancer
from support.moto_server import KEYS, REGION, fresh_moto, moto_call

ARGS = {"ImageId": AMI}
TYPE = "m5.large"


class AwsWorld:
    """`server`: the EC2 instance on which the servers of the test run."""

    capabilities = (True, True, True, True)
    has_console = True
    knows_addresses = True

    def __init__(self, url: str, stand_in: StandIn) -> None:
        self.url = url
        self.stand_in = stand_in
        self.clock = SystemClock()
        subnets = entries(moto_call(url, "DescribeSubnets"), "subnetSet")
        self.subnets = sorted(str(each["subnetId"]) for each in subnets)
        (self.subnet_base,) = {str(each["cidrBlock"]) for each in subnets if each["subnetId"] == self.subnets[0]}
        self.vpc = str(subnets[0]["vpcId"])
        self.server = self.run_server()
        self._doors: list[AwsProvider] = []

    def run_server(self) -> str:
        """Another EC2 instance that is not Nstance's."""
        params = {"ImageId": AMI, "MinCount": "1", "MaxCount": "1", "InstanceType": TYPE, "SubnetId": self.subnets[0]}
        return str(entries(moto_call(self.url, "RunInstances", params), "instancesSet")[0]["instanceId"])

    @property
    def leader_ip(self) -> str:
        return self.subnet_base.rpartition(".")[0] + ".250"

    def door(self, of: port.Scope) -> AwsProvider:
        return self.open(of)

    def open(
        self,
        of: port.Scope,
        *,
        server: str = "",
        address: FixedAddress | None = None,
        settings: AwsSettings | None = None,
        environment: dict[str, str] | None = None,
    ) -> AwsProvider:
        provider = open_aws(
            of,
            settings or AwsSettings(region=REGION, endpoint=self.stand_in.url),
            address or FixedAddress(ip4=self.leader_ip),
            clock=self.clock,
            server="s1",
            environment=environment
            or {**KEYS, "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.stand_in.metadata_url(server or self.server)},
        )
        self._doors.append(provider)
        create = provider.create

        async def create_with_defaults(request: port.CreateRequest) -> port.Vm:
            return await create(
                replace(request, args=request.args or ARGS, instance_type=request.instance_type or TYPE)
            )

        provider.create = create_with_defaults  # type: ignore[method-assign]
        return provider

    async def close(self) -> None:
        for door in self._doors:
            await door.close()

    async def tick(self) -> None:
        await asyncio.sleep(0.02)

    def vms(self, id: InstanceId) -> list[str]:
        """The EC2 IDs of its instances that are not terminated, by moto's own books."""
        answer = moto_call(self.url, "DescribeInstances")
        everything = [e for group in entries(answer, "reservationSet") for e in entries(group, "instancesSet")]
        return [
            str(each["instanceId"])
            for each in everything
            if each["instanceState"]["name"] not in ("terminated", "shutting-down")
            and id in [tag["value"] for tag in entries(each, "tagSet")]
        ]

    def count(self, id: InstanceId) -> int:
        return len(self.vms(id))

    def hostname(self, vm: port.Vm) -> str:
        return f"ip-{vm.ip4.replace('.', '-')}.{REGION}.compute.internal"

    def end_by_hand(self, id: InstanceId) -> None:
        moto_call(self.url, "StopInstances", {"InstanceId.1": self.vms(id)[0]})

    def spoil(self, id: InstanceId) -> None:
        keys = ("cluster-id", "shard", "tenant", "group")
        tags = {f"Tag.{number}.Key": f"nstance:{key}" for number, key in enumerate(keys, 1)}
        moto_call(self.url, "DeleteTags", {"ResourceId.1": self.vms(id)[0], **tags})

    def write_console(self, id: InstanceId, text: str) -> None:
        self.stand_in.books.console[self.vms(id)[0]] = text

    @contextlib.contextmanager
    def broken_listing(self) -> Iterator[None]:
        self.stand_in.rules.outages["DescribeInstances"] = OUTAGE
        yield
        self.stand_in.rules.heal()

    def balancer(self) -> LoadBalancer:
        """Two target groups, as one for each port has them."""
        return LoadBalancer("lb", tuple(self.target_group(f"web-{number}") for number in range(2)))

    def target_group(self, name: str) -> str:
        params = {"Name": name, "Protocol": "HTTP", "Port": "80", "VpcId": self.vpc, "TargetType": "instance"}
        answer = moto_call(self.url, "CreateTargetGroup", params, service="elasticloadbalancing")
        return str(answer["CreateTargetGroupResult"]["TargetGroups"][0]["TargetGroupArn"])


@contextlib.asynccontextmanager
async def aws_world(rules: Rules | None = None) -> AsyncIterator[AwsWorld]:
    url = await asyncio.to_thread(fresh_moto)
    async with contextlib.AsyncExitStack() as stack:
        moto = Moto(url, REGION)
        stack.push_async_callback(moto.close)
        stand_in = StandIn(moto, SystemClock(), rules or Rules(terminated_shown=1.5, page_size=2))
        await stand_in.start()
        stack.push_async_callback(stand_in.close)
        world = AwsWorld(url, stand_in)
        stack.push_async_callback(world.close)
        yield world
