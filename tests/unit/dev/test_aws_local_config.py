"""A configuration for AWS on the stand-in: what belongs to an account is replaced, all else stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from nstance.config.jsonc import read
from nstance.dev.aws import local_config
from nstance.model.ids import ShardId
from nstance.server.config import configuration

EXAMPLES = Path(__file__).parents[3] / "examples"
CLOUD = local_config.LocalCloud(
    region="us-east-1",
    subnets=["subnet-a", "subnet-b", "subnet-c"],
    security_group="sg-1",
    files_url="http://127.0.0.1:9",
    first_port=10_000,
)


def adapted(name: str) -> Any:
    body = local_config.adapt((EXAMPLES / name).read_text(), CLOUD, source=name)
    configuration.parse(body, shard=ShardId("dev"), source=name)
    return json.loads(body)


def test_the_example_for_aws() -> None:
    found, original = adapted("config-aws.jsonc"), read((EXAMPLES / "config-aws.jsonc").read_text(), source="x").value
    assert found["shard"]["subnet_pools"] == {"main": ["subnet-a", "subnet-b"]}
    assert found["shard"]["bind"]["agent_addr"] == "127.0.0.1:10004"
    assert found["agent"] == {"url": "http://127.0.0.1:9/agent.tar.gz"}
    assert found["templates"]["web"]["args"]["SecurityGroupIds"] == ["sg-1"]
    assert "owners" not in found["images"]["debian"]
    assert found["groups"] == original["groups"]  # type: ignore[index,call-overload]
    assert found["templates"]["web"]["userdata"] == original["templates"]["web"]["userdata"]  # type: ignore[index,call-overload]


def test_the_guides_configuration_gets_what_it_leaves_out() -> None:
    found = adapted("config-netsy.jsonc")
    assert found["server"]["provider"]["kind"] == "aws"
    assert found["templates"]["etc"]["userdata"]["content"] == "http://127.0.0.1:9/userdata/netsy.sh"
    assert "debian_13_arm64" in found["images"]
    text = (EXAMPLES / "config-netsy.jsonc").read_text()
    assert local_config.instance_profiles(text, source="x") == ["netsy-node"]


@pytest.mark.parametrize("pools", [1, 2, 3])
def test_every_pool_gets_subnets_of_its_own(pools: int) -> None:
    document = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "aws"}, "subnet_pools": {f"p{n}": ["x"] for n in range(pools)}},
    }
    found = json.loads(local_config.adapt(json.dumps(document), CLOUD, source="x"))["shard"]["subnet_pools"]
    assert len({subnet for subnets in found.values() for subnet in subnets}) == pools
