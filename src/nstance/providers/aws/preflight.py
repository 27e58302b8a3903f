"""What would fail on AWS: credentials, permissions, instance types, and what launches name. Nothing is changed."""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any

from nstance.aws.client import EC2, STS, AwsClient
from nstance.aws.encoding import Params, entries
from nstance.aws.errors import AwsError
from nstance.clouds.errors import NoAnswerError, NotSentError
from nstance.model.ids import GroupName, InstanceId, Kind, TenantId
from nstance.providers import errors
from nstance.providers.aws import launches as requests
from nstance.providers.aws.faults import path_of, translated
from nstance.providers.aws.permission_checks import DRY_RUN_DONE, INFRA, PermissionChecks, dry_run
from nstance.providers.port import CloudPlan, CreateRequest, Fault, FixedAddress, PlannedLaunch, Scope

CONCURRENT_CALLS = 8


class LaunchChecks:
    def __init__(self, scope: Scope, client: AwsClient, address: FixedAddress | None) -> None:
        self._scope = scope
        self._client = client
        self._permissions = PermissionChecks(scope, client, address)

    async def run(self, plan: CloudPlan) -> Sequence[Fault]:
        if fault := await self._credentials():
            return [fault]  # every other call would only repeat it
        described = await dry_run(self._client, "DescribeInstances", {})
        if described == "":  # a launch would be a real one
            return [Fault(INFRA, "the service ignores DryRun, so neither permissions nor launches are checked")]
        slots = asyncio.Semaphore(CONCURRENT_CALLS)

        async def bounded(check: Awaitable[list[Fault]]) -> list[Fault]:
            async with slots:
                return await check

        checks: list[Awaitable[list[Fault]]] = [self._permissions.run(described)]
        checks += [
            self._subnet(id, ("shard", "subnet_pools", pool, number), plan.zone)
            for pool, ids in plan.subnet_pools.items()
            for number, id in enumerate(ids)
        ]
        checks += [self._type(name, _users(plan.launches, name)) for name in _types(plan.launches)]
        for launch in plan.launches:
            checks += [self._names(launch), self._launch(launch)]
        found = await asyncio.gather(*map(bounded, checks))
        return list(dict.fromkeys(fault for faults in found for fault in faults))

    async def _credentials(self) -> Fault | None:
        try:
            await self._client.query(STS, "GetCallerIdentity", {})
        except AwsError as problem:
            return Fault(INFRA, f"AWS does not accept the credentials: {problem}")
        except (NotSentError, NoAnswerError) as problem:
            return Fault(INFRA, f"failed to ask AWS who this is: {problem}")
        return None

    async def _launch(self, launch: PlannedLaunch) -> list[Fault]:
        path: tuple[str | int, ...] = ("templates", launch.template, "args")
        request = CreateRequest(
            id=InstanceId("preflight"),
            tenant=TenantId("default"),
            group=GroupName("preflight"),
            kind=Kind("prf"),
            template=launch.template,
            created=0.0,
            market=launch.markets[0] if launch.markets else "",
            instance_type=launch.instance_types[0] if launch.instance_types else "",
            subnet=launch.subnets[0] if launch.subnets else "",
            args=launch.args,
        )
        params = requests.parameters(self._scope, request)
        del params["ClientToken"]
        answer = await dry_run(self._client, "RunInstances", params)
        if isinstance(answer, str):
            return [Fault(path, f"failed to check ec2:RunInstances: {answer or 'DryRun was ignored'}")]
        if answer.code == DRY_RUN_DONE:
            return []
        if answer.is_denied:
            text = "AWS denies ec2:RunInstances with these arguments (or ec2:CreateTags, or iam:PassRole): allow it"
            return [Fault(path, f"{text} in the server's role: {answer}")]
        if answer.is_throttled or answer.is_server_fault:
            return [Fault(path, f"failed to check ec2:RunInstances: {answer}")]
        named = path_of(answer)
        place = (*path[:2], *named.split(".")) if named.startswith("args.") else path
        return [Fault(place, f"EC2 would refuse to create an instance: {answer}")]

    async def _subnet(self, id: str, path: tuple[str | int, ...], zone: str) -> list[Fault]:
        try:
            with translated("ec2:DescribeSubnets", changes=False):
                answer = await self._client.query(EC2, "DescribeSubnets", {"SubnetId": [id]})
        except errors.NotFoundError as problem:
            return [Fault(path, f"there is no subnet {id} in {self._client.region}: {problem}")]
        except errors.ProviderError as problem:
            return [Fault(path, f"failed to look for the subnet {id}: {problem}")]
        zones = [str(each.get("availabilityZone")) for each in entries(answer, "subnetSet")]
        if zone and zones and zones[0] != zone:
            return [Fault(path, f"expected a subnet in {zone}, the shard's zone, found {id} in {zones[0]}")]
        return []

    async def _type(self, name: str, paths: Sequence[tuple[str | int, ...]]) -> list[Fault]:
        return await self._find("DescribeInstanceTypes", {"InstanceType": [name]}, f"instance type {name}", paths)

    async def _names(self, launch: PlannedLaunch) -> list[Fault]:
        """Image, key pair and security groups, each with its own path."""
        found: list[Fault] = []
        for key, action, params, what in _named(launch.args):
            path = ("templates", launch.template, "args", *key)
            found += await self._find(action, params, what, [path])
        return found

    async def _find(
        self, action: str, params: Params, what: str, paths: Sequence[tuple[str | int, ...]]
    ) -> list[Fault]:
        try:
            with translated(f"ec2:{action}", changes=False):
                await self._client.query(EC2, action, params)
        except (errors.NotFoundError, errors.PermanentError) as problem:
            text = f"there is no {what} in {self._client.region}: {problem}"
            if isinstance(problem, errors.PermanentError) and problem.permission:
                text = f"not checked: it needs {problem.permission}, which servers do not need: {problem}"
            return [Fault(path, text) for path in paths]
        except errors.ProviderError as problem:
            return [Fault(path, f"failed to look for the {what}: {problem}") for path in paths]
        return []


def _types(launches: Sequence[PlannedLaunch]) -> list[str]:
    return list(dict.fromkeys(name for launch in launches for name in launch.instance_types if name))


def _users(launches: Sequence[PlannedLaunch], name: str) -> list[tuple[str | int, ...]]:
    """The templates of launches with an instance type; a group may have another one than its template."""
    users: dict[tuple[str | int, ...], None] = {}
    for launch in launches:
        if name in launch.instance_types:
            several = len(launch.instance_types) > 1
            place = ("instance_types", launch.instance_types.index(name)) if several else ("instance_type",)
            users["templates", launch.template, *place] = None
    return list(users)


def _named(args: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str, Params, str]]:
    """What arguments name: where, and the call that finds it."""
    image = args.get("ImageId")
    if isinstance(image, str) and not image.startswith("resolve:"):
        yield ("ImageId",), "DescribeImages", {"ImageId": [image]}, f"image {image}"
    if isinstance(key := args.get("KeyName"), str):
        yield ("KeyName",), "DescribeKeyPairs", {"KeyName": [key]}, f"key pair {key}"
    groups: list[tuple[tuple[str | int, ...], object]] = [
        (("SecurityGroupIds", number), id) for number, id in enumerate(args.get("SecurityGroupIds") or ())
    ]
    for number, interface in enumerate(args.get("NetworkInterfaces") or ()):
        ids = interface.get("Groups") or () if isinstance(interface, Mapping) else ()
        groups += [(("NetworkInterfaces", number, "Groups", place), id) for place, id in enumerate(ids)]
    for path, id in groups:
        yield path, "DescribeSecurityGroups", {"GroupId": [id]}, f"security group {id}"
