"""Every permission of the servers' role is needed: without it, what docs/aws-permissions.md says fails, and nothing else.

The stand-in evaluates the policy that Terraform renders, with its resources and conditions. moto's own evaluation knows
neither, so it is not used.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from contracts.aws_world import AwsWorld, aws_world
from contracts.provider_worlds import request, scope
from nstance.config import addresses
from nstance.dev.aws.moto import AMI
from nstance.providers import errors
from nstance.providers.aws.provider import AwsProvider
from nstance.providers.port import FixedAddress, ImageQuery, LeaderAddress, LoadBalancer
from support.aws_permissions import Permissions
from support.aws_policies import Policy, without
from support.eventually import eventually
from support.moto_server import KEYS, REGION, moto_call
from support.ports import free_port

__all__ = ["free_port"]

ROOT = Path(__file__).parents[3]
POLICY = (ROOT / "deploy/terraform/aws/cluster/tests/server-policy.json").read_text()
POLICY_GROUP = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/web/1"
_ROW = re.compile(r"^\| `(\w+)` \| `([\w:]+)` \|.*\| ([^|]*) \|$", re.MULTILINE)
ROWS = _ROW.findall((ROOT / "docs/aws-permissions.md").read_text())
SCOPE, BUCKET, ROLE, LOGS = scope("demo", "one"), "demo-state", "nstance-demo-agent", "/nstance/demo/one"
IP6 = "2001:db8::250"
STARTED = "leadership acquired"


class Account:
    """An account as the Terraform module leaves it, and the servers' view of it."""

    def __init__(self, world: AwsWorld, folder: Path, port: int) -> None:
        self.world, self.folder, self.port = world, folder, port
        key = self.boto("kms").create_key()["KeyMetadata"]["Arn"]
        secrets = self.boto("secretsmanager")
        self.secret = secrets.create_secret(Name="nstance/demo/key", SecretString="k" * 32, KmsKeyId=key)["ARN"]
        self.group = world.target_group("web")
        iam = self.boto("iam")
        iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName=ROLE)
        iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
        self.boto("logs").create_log_group(logGroupName=LOGS)
        where = {"LocationConstraint": REGION}
        self.boto("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=where)
        self.other = world.run_server()  # of the same shard
        for interface in moto_call(world.url, "DescribeNetworkInterfaces", {})["networkInterfaceSet"]:
            self.tag(interface["networkInterfaceId"])
        self.tag(world.server, self.other)
        text = POLICY.replace("SECRET_ARN", self.secret).replace("KMS_KEY_ARN", key)
        self.policy: dict[str, Any] = json.loads(text.replace(POLICY_GROUP, self.group))

    def boto(self, service: str, url: str = "") -> Any:
        """Past the policy, unless it is a call to the stand-in."""
        keys = {"aws_access_key_id": "t", "aws_secret_access_key": "t"}
        return boto3.client(service, endpoint_url=url or self.world.url, region_name=REGION, **keys)

    def tag(self, *ids: str) -> None:
        params = {f"ResourceId.{number}": id for number, id in enumerate(ids, 1)}
        moto_call(self.world.url, "CreateTags", {**params, "Tag.1.Key": "nstance:cluster-id", "Tag.1.Value": "demo"})

    def provider(self, address: FixedAddress | None = None, server: str = "") -> AwsProvider:
        return self.world.open(SCOPE, address=address, server=server)

    @contextlib.asynccontextmanager
    async def unlimited(self) -> AsyncIterator[None]:
        """What was there before."""
        gate, self.world.stand_in.gate = self.world.stand_in.gate, None
        yield
        self.world.stand_in.gate = gate

    def limit(self, policy: Mapping[str, Any]) -> None:
        """Callers may do what this policy says."""
        self.world.stand_in.gate = Permissions(Policy(policy), self.world.stand_in.moto)


@pytest.fixture
async def account(tmp_path: Path, free_port: int) -> AsyncIterator[Account]:
    async with aws_world() as world:
        yield Account(world, tmp_path, free_port)


# ---- what servers do


async def start_server(account: Account) -> str:
    """A server's log, until it leads or says why it does not."""
    services = list(addresses.Service)
    bind = {service.key: f"127.0.0.1:{account.port + number}" for number, service in enumerate(services)}
    key = {"provider": "aws-secrets-manager", "source": account.secret}
    configuration = {
        "cluster": {"id": "demo", "secrets": {"provider": "object-storage", "encryption_key": key}},
        "shard": {
            "infra": {"provider": "aws", "region": REGION},
            "subnet_pools": {"main": [account.world.subnets[0]]},
            "bind": bind,
        },
    }
    place = {"Bucket": BUCKET, "Key": "nstance/shard/one/config.jsonc"}
    account.boto("s3").put_object(**place, Body=json.dumps(configuration).encode())
    command = [os.path.join(os.path.dirname(sys.executable), "nstance-server"), "--shard", "one", "--bucket", BUCKET]
    command += ["--prefix", "nstance/", "--cachedir", str(account.folder / "cache"), "--advertise-host", "127.0.0.1"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "NSTANCE_"))}
    environment = {**inherited, **KEYS, "AWS_ENDPOINT_URL": account.world.stand_in.url}
    log = account.folder / "server.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=output, stderr=output)
    try:
        await eventually(lambda: re.search(f"{STARTED}|failed to|denies", log.read_text()) or process.returncode)
        return log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def boot(account: Account) -> None:
    log = await start_server(account)
    if STARTED not in log:
        raise RuntimeError(log)


async def create(account: Account, **args: Any) -> None:
    await account.provider().create(request(subnet=account.world.subnets[0], args={"ImageId": AMI, **args}))


async def create_with_profile(account: Account) -> None:
    await create(account, IamInstanceProfile={"Name": ROLE})


async def create_spot(account: Account) -> None:
    """With tags of a user for its request."""
    tags = [{"ResourceType": "spot-instances-request", "Tags": [{"Key": "team", "Value": "web"}]}]
    args = {"ImageId": AMI, "TagSpecifications": tags}
    await account.provider().create(request(subnet=account.world.subnets[0], args=args, market="spot"))


async def delete(account: Account) -> None:
    async with account.unlimited():
        vm = await account.provider().create(request())
    await account.provider().delete(vm.id, vm.provider_id)


async def console(account: Account) -> None:
    async with account.unlimited():
        vm = await account.provider().create(request())
    await account.provider().console_output(vm.id, vm.provider_id)


async def list_instances(account: Account) -> None:
    await account.provider().list()


async def find_image(account: Account) -> None:
    await account.provider().find_image(ImageQuery(filters={"name": ("debian-13-x86_64",)}))


async def find_image_by_parameter(account: Account) -> None:
    parameter = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    await account.provider().find_image(ImageQuery(filters={}, parameter=parameter))


async def look_at_subnet(account: Account) -> None:
    await account.provider().free_addresses(account.world.subnets[0])


async def assign(account: Account, address: FixedAddress | None = None) -> None:
    leader = account.provider(address)
    assert isinstance(leader, LeaderAddress)
    await leader.assign_leader_address()


async def release(account: Account) -> None:
    leader = account.provider()
    assert isinstance(leader, LeaderAddress)
    async with account.unlimited():
        await leader.assign_leader_address()
    await leader.release_leader_address()


async def assign_ip6(account: Account) -> None:
    """From another server, so that it loses the address first."""
    address = FixedAddress(ip6=IP6)
    other = account.provider(address, account.other)
    assert isinstance(other, LeaderAddress)
    async with account.unlimited():
        await other.assign_leader_address()
    await assign(account, address)


async def move_interface(account: Account) -> None:
    """From another server, so that it is detached first."""
    made = moto_call(account.world.url, "CreateNetworkInterface", {"SubnetId": account.world.subnets[0]})
    address = FixedAddress(ip4="10.0.0.9", interface_id=str(made["networkInterface"]["networkInterfaceId"]))
    account.tag(address.interface_id)
    other = account.provider(address, account.other)
    assert isinstance(other, LeaderAddress)
    async with account.unlimited():
        await other.assign_leader_address()
    await assign(account, address)


async def register(account: Account) -> None:
    async with account.unlimited():
        vm = await account.provider().create(request())
    balancer = LoadBalancer("lb", (account.group,))
    await account.provider().register_target(balancer, vm.provider_id)
    await account.provider().list_targets(balancer)
    await account.provider().deregister_target(balancer, vm.provider_id)


async def write_logs(account: Account) -> None:
    """As the CloudWatch agent does: Nstance itself does not."""

    def write() -> None:
        logs = account.boto("logs", account.world.stand_in.url)
        stream = {"logGroupName": LOGS, "logStreamName": "i-1"}
        logs.create_log_stream(**stream)
        logs.describe_log_streams(logGroupName=LOGS)
        logs.put_log_events(**stream, logEvents=[{"timestamp": 1, "message": "x"}])

    await asyncio.to_thread(write)


USES: dict[str, Callable[[Account], Awaitable[None]]] = {
    "s3:ListBucket": boot,
    "s3:GetObject": boot,
    "s3:PutObject": boot,
    "s3:DeleteObject": boot,
    "secretsmanager:GetSecretValue": boot,
    "kms:Decrypt": boot,
    "ec2:RunInstances": create,
    "ec2:CreateTags": create,
    "ec2:TerminateInstances": delete,
    "ec2:GetConsoleOutput": console,
    "ec2:DescribeInstances": list_instances,
    "ec2:DescribeImages": find_image,
    "ec2:DescribeSubnets": look_at_subnet,
    "ec2:DescribeNetworkInterfaces": move_interface,
    "ec2:AssignPrivateIpAddresses": assign,
    "ec2:UnassignPrivateIpAddresses": release,
    "ec2:AssignIpv6Addresses": assign_ip6,
    "ec2:UnassignIpv6Addresses": assign_ip6,
    "ec2:AttachNetworkInterface": move_interface,
    "ec2:DetachNetworkInterface": move_interface,
    "iam:PassRole": create_with_profile,
    "ssm:GetParameter": find_image_by_parameter,
    "logs:CreateLogStream": write_logs,
    "logs:DescribeLogStreams": write_logs,
    "logs:PutLogEvents": write_logs,
    "elasticloadbalancing:RegisterTargets": register,
    "elasticloadbalancing:DeregisterTargets": register,
    "elasticloadbalancing:DescribeTargetHealth": register,
}


def test_every_row_is_tried() -> None:
    assert {permission for _, permission, _ in ROWS} == set(USES)


@pytest.mark.parametrize("use", dict.fromkeys([*USES.values(), create_spot]), ids=lambda use: use.__name__)
async def test_the_policy_is_enough(account: Account, use: Callable[[Account], Awaitable[None]]) -> None:
    account.limit(account.policy)
    await use(account)


@pytest.mark.parametrize(("statement", "permission", "fails"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
async def test_without_a_permission_fails_what_the_page_says(
    account: Account, statement: str, permission: str, fails: str
) -> None:
    account.limit(without(account.policy, statement, permission))
    (expected,) = re.findall(r"`([^`]+)`", fails)
    with pytest.raises((errors.ProviderError, RuntimeError, account.boto("logs").exceptions.ClientError)) as caught:
        await USES[permission](account)
    assert expected in str(caught.value)
