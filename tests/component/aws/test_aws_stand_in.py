"""The stand-in speaks as AWS does: AWS's own SDK reads its replies and errors by its own models."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import boto3
import pytest
from botocore.exceptions import ClientError

from contracts.aws_world import AwsWorld, aws_world
from nstance.aws.client import KMS, SECRETS, SSM, AwsClient, Service
from nstance.aws.errors import AwsError
from nstance.clock import SystemClock
from nstance.dev.aws.moto import AMI
from nstance.dev.aws.rules import THROTTLED, Offer, Rules
from support.eventually import eventually
from support.moto_server import REGION
from support.ports import free_port

__all__ = ["free_port"]

T = TypeVar("T")


@pytest.fixture
async def world() -> AsyncIterator[AwsWorld]:
    async with aws_world(Rules(page_size=2)) as made:
        yield made


def client(world: AwsWorld, service: str) -> Any:
    config = boto3.session.Config(retries={"total_max_attempts": 1})
    return boto3.client(
        service,
        endpoint_url=world.stand_in.url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=config,
    )


async def beside(work: Callable[[], T]) -> T:
    """The SDK blocks, and the stand-in runs in this loop."""
    return await asyncio.to_thread(work)


def launch(ec2: Any, token: str, **fields: Any) -> str:
    fields = {"InstanceType": "m5.large", "ImageId": AMI, "MinCount": 1, "MaxCount": 1, "ClientToken": token, **fields}
    return str(ec2.run_instances(**fields)["Instances"][0]["InstanceId"])


def refused(work: Callable[[], object]) -> str:
    with pytest.raises(ClientError) as caught:
        work()
    return str(caught.value.response["Error"]["Code"])


async def test_a_remembered_listing_is_motos(world: AwsWorld) -> None:
    """Also of what was launched, terminated and reclaimed since the listing before."""
    ec2, rules = client(world, "ec2"), world.stand_in.rules
    filters = [{"Name": "tag:nstance:shard", "Values": ["here"]}]

    def start(number: int, shard: str) -> str:
        tags = [{"Key": "nstance:shard", "Value": shard}]
        return launch(ec2, f"token-{number}", TagSpecifications=[{"ResourceType": "instance", "Tags": tags}])

    def listed() -> list[tuple[str, str]]:
        pages = ec2.get_paginator("describe_instances").paginate(Filters=filters, PaginationConfig={"PageSize": 100})
        return sorted(
            (each["InstanceId"], each["State"]["Name"])
            for page in pages
            for group in page["Reservations"]
            for each in group["Instances"]
        )

    async def check(*states: str) -> None:
        rules.remembers_listings = True
        remembered = await beside(listed)
        rules.remembers_listings = False
        assert remembered == await beside(listed)
        assert sorted(state for _, state in remembered) == sorted(states)

    ours = [await beside(lambda number=number: start(number, "here")) for number in range(3)]
    await beside(lambda: start(3, "there"))
    await check("running", "running", "running")
    await beside(lambda: ec2.terminate_instances(InstanceIds=[ours[0]]))
    await beside(lambda: start(4, "here"))
    await world.stand_in.instances.interrupt(ours[1])
    await check("running", "running", "terminated", "terminated")


async def test_tokens(world: AwsWorld) -> None:
    def use() -> None:
        ec2 = client(world, "ec2")
        first = launch(ec2, "one")
        assert launch(ec2, "one") == first
        assert refused(lambda: launch(ec2, "one", InstanceType="t3.large")) == "IdempotentParameterMismatch"
        ec2.terminate_instances(InstanceIds=[first])
        assert refused(lambda: launch(ec2, "one")) == "IdempotentInstanceTerminated"
        assert refused(lambda: ec2.terminate_instances(InstanceIds=["elsewhere"])) == "InvalidInstanceID.Malformed"

    await beside(use)


async def test_pages_and_instances_that_are_not_visible_yet(world: AwsWorld) -> None:
    def use() -> None:
        ec2 = client(world, "ec2")
        made = {launch(ec2, f"token-{number}") for number in range(5)} | {world.server}
        pages = list(ec2.get_paginator("describe_instances").paginate())
        shown = {each["InstanceId"] for page in pages for group in page["Reservations"] for each in group["Instances"]}
        assert (len(pages), shown) == (3, made)
        world.stand_in.rules.visible_after = 3600.0
        hidden = launch(ec2, "hidden")
        assert refused(lambda: ec2.describe_instances(InstanceIds=[hidden])) == "InvalidInstanceID.NotFound"

    await beside(use)


async def test_limits(world: AwsWorld) -> None:
    def use() -> None:
        ec2, rules = client(world, "ec2"), world.stand_in.rules
        rules.capacity[Offer(instance_type="m5.large")] = 1
        launch(ec2, "a")
        assert refused(lambda: launch(ec2, "b")) == "InsufficientInstanceCapacity"
        rules.add("DescribeInstances", THROTTLED)
        assert refused(ec2.describe_instances) == "RequestLimitExceeded"
        rules.capacity.clear()
        rules.bucket_size, rules.bucket_refill = 2, 0.001
        assert [launch(ec2, token) for token in ("c", "d")]
        assert refused(lambda: launch(ec2, "e")) == "RequestLimitExceeded"
        assert refused(lambda: launch(ec2, "f", UserData="x" * 17_000)) == "InvalidParameterValue"

    await beside(use)


@pytest.mark.parametrize(
    ("service", "action", "params", "says"),
    [
        (SSM, "GetParameter", {"Name": "/x", "Decrypt": True}, 'Unknown parameter in input: "Decrypt"'),
        (SECRETS, "PutSecretValue", {"SecretString": "x"}, 'Missing required parameter in input: "SecretId"'),
        (KMS, "Decrypted", {}, "The action Decrypted is not valid"),
    ],
)
async def test_requests_in_json_are_checked(
    world: AwsWorld, service: Service, action: str, params: Mapping[str, object], says: str
) -> None:
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    aws = AwsClient(region=REGION, clock=SystemClock(), endpoint_url=world.stand_in.url, environment=environment)
    try:
        with pytest.raises(AwsError, match=says):
            await aws.json(service, action, params)
    finally:
        await aws.close()


async def test_targets_and_other_services(world: AwsWorld) -> None:
    def use() -> None:
        elb, s3 = client(world, "elbv2"), client(world, "s3")
        arn = world.target_group("web")
        world.stand_in.rules.deregistration_seconds, world.stand_in.rules.healthy_after = 3600.0, 3600.0
        elb.register_targets(TargetGroupArn=arn, Targets=[{"Id": world.server}])
        health = elb.describe_target_health(TargetGroupArn=arn)["TargetHealthDescriptions"]
        assert [each["TargetHealth"]["State"] for each in health] == ["initial"]
        elb.deregister_targets(TargetGroupArn=arn, Targets=[{"Id": world.server}])
        health = elb.describe_target_health(TargetGroupArn=arn)["TargetHealthDescriptions"]
        assert [each["TargetHealth"]["State"] for each in health] == ["draining"]
        unknown = [{"Id": "i-00000000000000000"}]
        assert refused(lambda: elb.register_targets(TargetGroupArn=arn, Targets=unknown)) == "InvalidTarget"
        s3.create_bucket(Bucket="some", CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_object(Bucket="some", Key="a", Body=b"b", IfNoneMatch="*")
        assert s3.get_object(Bucket="some", Key="a")["Body"].read() == b"b"

    await beside(use)


async def test_the_command_prints_its_endpoint_and_ends_by_a_signal() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "nstance.dev.aws",
        "--capacity",
        "m5.large:0",
        stdout=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 120)).decode().strip()
    assert url.startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_moto_ends_with_a_program_that_is_killed(free_port: int) -> None:
    command = (sys.executable, "-m", "nstance.dev.aws", "--moto-port", str(free_port))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), 120)

    async def answers() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", free_port)
        except OSError:
            return False
        writer.close()
        return True

    async def is_silent() -> bool:
        return not await answers()

    assert await answers()
    process.kill()
    await process.wait()
    await eventually(is_silent)


async def test_a_bucket_with_suspended_versioning_can_be_emptied(world: AwsWorld) -> None:
    """As Terraform does it: it suspends the versioning, and then deletes version by version."""

    def empty() -> list[str]:
        s3 = client(world, "s3")
        s3.create_bucket(Bucket="state", CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_bucket_versioning(Bucket="state", VersioningConfiguration={"Status": "Enabled"})
        for _ in range(2):
            s3.put_object(Bucket="state", Key="a", Body=b"x")
            s3.delete_object(Bucket="state", Key="a")
        s3.put_bucket_versioning(Bucket="state", VersioningConfiguration={"Status": "Suspended"})
        status = s3.get_bucket_versioning(Bucket="state")["Status"]
        for kind in ("Versions", "DeleteMarkers"):
            found = s3.list_object_versions(Bucket="state")[kind]
            versions = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]
            assert "Errors" not in s3.delete_objects(Bucket="state", Delete={"Objects": versions})
        s3.delete_bucket(Bucket="state")
        return [status, *(bucket["Name"] for bucket in s3.list_buckets()["Buckets"])]

    assert await beside(empty) == ["Suspended"]


async def test_one_of_many_writers_wins(world: AwsWorld) -> None:
    """moto alone lets two of them win now and then."""
    s3 = client(world, "s3")
    await beside(lambda: s3.create_bucket(Bucket="state", CreateBucketConfiguration={"LocationConstraint": REGION}))

    def write(key: str) -> str:
        try:
            s3.put_object(Bucket="state", Key=key, Body=b"x", IfNoneMatch="*")
        except ClientError as problem:
            return str(problem.response["Error"]["Code"])
        return "won"

    for number in range(10):
        ends = await asyncio.gather(*(asyncio.to_thread(write, f"k{number}") for _ in range(16)))
        assert sorted(ends) == ["PreconditionFailed"] * 15 + ["won"]
