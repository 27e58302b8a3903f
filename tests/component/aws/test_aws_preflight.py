"""`nstance-server --validate --online` on AWS: every fault at once, with its path, and nothing is changed."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.aws_world import AwsWorld, aws_world
from contracts.provider_worlds import request, scope
from nstance.clock import SystemClock, SystemRng
from nstance.dev.aws.moto import AMI, Moto, Reply
from nstance.dev.aws.rules import Fault
from nstance.server import options, validation
from support.aws_permissions import Permissions
from support.aws_policies import Policy, without
from support.moto_server import KEYS, REGION, moto_call

POLICY = (Path(__file__).parents[3] / "deploy/terraform/aws/cluster/tests/server-policy.json").read_text()
SCOPE = scope("demo", "one")

GROUP_ARN = f"arn:aws:elasticloadbalancing:{REGION}:123456789012:targetgroup/none/0123456789abcdef"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsWorld]:
    async with aws_world() as made:
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        yield made


def document(world: AwsWorld, tmp_path: Path, **args: Any) -> dict[str, Any]:
    (tmp_path / "secrets").mkdir(mode=0o700, exist_ok=True)
    return {
        "cluster": {"id": "demo", "secrets": {"provider": "file", "prefix": str(tmp_path / "secrets")}},
        "shard": {
            "infra": {"provider": "aws", "region": REGION, "options": {"endpoint": world.stand_in.url}},
            "subnet_pools": {"main": [world.subnets[0]]},
        },
        "images": {"debian": {"filters": [{"name": "name", "values": ["debian-13-x86_64"]}]}},
        "templates": {
            "web": {"kind": "web", "instance_type": "m5.large", "args": {"ImageId": "{{ .Image.debian }}", **args}}
        },
        "groups": {"default": {"web": {"template": "web", "size": 5}}},
    }


async def validate(configured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is wrong, by path."""
    monkeypatch.setenv("NSTANCE_ENCRYPTION_KEY", "k" * 32)
    place = tmp_path / "bucket" / "shard" / "one"
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.jsonc").write_text(json.dumps(configured))
    words = ["--storage", "file", "--bucket", str(tmp_path / "bucket"), "--shard", "one", "--validate", "--online"]
    found = await validation.validate(options.parse(words, version=""), SystemClock(), SystemRng())
    return {problem.path: problem.message for problem in found}


def instances(world: AwsWorld) -> str:
    return json.dumps(moto_call(world.url, "DescribeInstances"), default=str, sort_keys=True)


async def test_a_right_configuration_has_no_fault(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = instances(world)
    assert await validate(document(world, tmp_path), tmp_path, monkeypatch) == {}
    assert instances(world) == before


async def test_every_fault_is_found_at_once(world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = document(world, tmp_path, KeyName="nobody", SecurityGroupIds=["sg-0123456789abcdef0"])
    configured["shard"]["subnet_pools"]["main"].append("subnet-0123456789abcdef0")
    configured["images"]["other"] = {"filters": [{"name": "name", "values": ["plan9"]}]}
    configured["load_balancers"] = {"lb": {"provider": "aws", "target_group_arns": [GROUP_ARN]}}
    configured["templates"]["web"]["instance_type"] = "m99.huge"
    before = instances(world)
    found = await validate(configured, tmp_path, monkeypatch)
    expected = {
        "shard.subnet_pools.main[1]": "there is no subnet subnet-0123456789abcdef0",
        "images.other": "there is no image other",
        "load_balancers.lb.target_group_arns[0]": "there is no target group",
        "templates.web.instance_type": f"there is no instance type m99.huge in {REGION}",
        "templates.web.args.KeyName": f"there is no key pair nobody in {REGION}",
        "templates.web.args.SecurityGroupIds[0]": "there is no security group sg-0123456789abcdef0",
    }
    assert {path: found.get(path, "")[: len(text)] for path, text in expected.items()} == expected
    assert instances(world) == before


async def test_an_alternative_that_does_not_exist_is_named_in_its_list(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = document(world, tmp_path)
    del configured["templates"]["web"]["instance_type"]
    configured["templates"]["web"]["instance_types"] = ["m5.large", "m99.huge"]
    found = await validate(configured, tmp_path, monkeypatch)
    assert found["templates.web.instance_types[1]"].startswith("there is no instance type m99.huge")


async def test_denied_calls_name_their_permission(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.door(SCOPE).create(request())
    world.stand_in.rules.deny("RunInstances", "TerminateInstances", "DescribeSubnets")
    found = await validate(document(world, tmp_path), tmp_path, monkeypatch)
    assert "AWS denies ec2:RunInstances" in found["templates.web.args"]
    assert "AWS denies ec2:TerminateInstances" in found["shard.infra"]
    assert "ec2:DescribeSubnets" in found["shard.subnet_pools.main[0]"]


@pytest.mark.parametrize("has_instance", [False, True])
async def test_a_policy_limited_to_tagged_instances_is_right(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_instance: bool
) -> None:
    """The servers' own policy denies calls on an instance that does not exist: it has no tags."""
    if has_instance:
        await world.door(SCOPE).create(request())
    before = instances(world)
    world.stand_in.gate = Permissions(Policy(json.loads(POLICY)), world.stand_in.moto)
    found = await validate(document(world, tmp_path), tmp_path, monkeypatch)
    text = "not checked: it needs ec2:DescribeInstanceTypes, which servers do not need"
    assert {path: message[: len(text)] for path, message in found.items()} == {"templates.web.instance_type": text}
    assert instances(world) == before


@pytest.mark.parametrize("action", ["ec2:TerminateInstances", "ec2:GetConsoleOutput"])
async def test_a_missing_permission_shows_on_an_instance_of_the_shard(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    await world.door(SCOPE).create(request())
    before = instances(world)
    policy = Policy(without(json.loads(POLICY), "DeleteOwnInstances", action))
    world.stand_in.gate = Permissions(policy, world.stand_in.moto)
    found = await validate(document(world, tmp_path), tmp_path, monkeypatch)
    assert f"AWS denies {action}: allow it in the server's role" in found["shard.infra"]
    assert instances(world) == before


async def test_a_service_that_ignores_dry_run_is_asked_for_nothing_with_an_effect(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.door(SCOPE).create(request())
    before, forward = instances(world), Moto.forward

    async def ignore(moto: Moto, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        return await forward(moto, method, path, headers, body.replace(b"&DryRun=true", b""))

    monkeypatch.setattr(Moto, "forward", ignore)
    found = await validate(document(world, tmp_path), tmp_path, monkeypatch)
    assert "the service ignores DryRun" in found["shard.infra"]
    assert instances(world) == before


async def test_refused_credentials_are_one_fault_of_the_provider(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stand_in.rules.outages["GetCallerIdentity"] = Fault("InvalidClientTokenId", "The token is invalid.", 403)
    found = await validate(document(world, tmp_path), tmp_path, monkeypatch)
    assert list(found) == ["shard.infra"]
    assert "AWS does not accept the credentials: InvalidClientTokenId" in found["shard.infra"]


async def test_an_outage_is_no_absence(world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Fault("Unavailable", "The server is overloaded.", 503)
    world.stand_in.rules.outages.update({"DescribeSubnets": outage, "DescribeInstanceTypes": outage})
    found = await validate(document(world, tmp_path), tmp_path, monkeypatch)
    assert found["shard.subnet_pools.main[0]"].startswith("failed to look for the subnet")
    assert found["templates.web.instance_type"].startswith("failed to look for the instance type")


async def test_a_wrong_image_id_is_found_before_any_instance_is_made(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = AMI[:-1] + ("1" if AMI[-1] != "1" else "2")
    found = await validate(document(world, tmp_path, ImageId=wrong), tmp_path, monkeypatch)
    assert found["templates.web.args.ImageId"].startswith(f"there is no image {wrong}")


async def test_what_only_a_launch_shows_has_the_path_of_its_arguments(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stand_in.rules.add("RunInstances", Fault("InvalidParameterCombination", "Not with this type."))
    found = await validate(document(world, tmp_path), tmp_path, monkeypatch)
    assert found["templates.web.args"].startswith("EC2 would refuse to create an instance: InvalidParameterCombination")


async def test_a_subnet_of_another_zone_is_named(
    world: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = document(world, tmp_path)
    configured["shard"]["infra"]["zone"] = f"{REGION}z"
    found = await validate(configured, tmp_path, monkeypatch)
    assert f"expected a subnet in {REGION}z" in found["shard.subnet_pools.main[0]"]
