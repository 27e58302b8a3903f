"""Requests of the AWS provider, checked against AWS's own service models, and its launch budget."""

import asyncio
import urllib.parse
from typing import Any

import botocore.session
import pytest

from contracts.provider_worlds import request, scope
from nstance.aws import arguments, encoding
from nstance.aws.arguments import RUN_INSTANCES
from nstance.dev.aws import requests as models
from nstance.providers import errors
from nstance.providers.aws import launches
from nstance.providers.aws.launch_budget import LaunchBudget
from support.hand_clock import HandClock


def sent(**changes: Any) -> dict[str, str]:
    params = launches.parameters(scope(), request(**changes))
    return dict(urllib.parse.parse_qsl(encoding.form("RunInstances", "2016-11-15", params).decode()))


def test_the_table_of_fields_is_the_sdks() -> None:
    shape = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    assert RUN_INSTANCES.keys() == shape.members.keys(), "run: make aws-fields"
    assert RUN_INSTANCES["BlockDeviceMappings"][1][0]["Ebs"][1].keys() == (
        shape.members["BlockDeviceMappings"].member.members["Ebs"].members.keys()
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"market": "spot", "subnet": "subnet-1", "userdata": b"x"},
        {"market": "on-demand"},
        {
            "args": {
                "ImageId": "ami-1",
                "SecurityGroupIds": ["sg-1"],
                "IamInstanceProfile": {"Name": "p"},
                "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 8, "Encrypted": True}}],
                "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": ["sg-1"], "Ipv6AddressCount": 1}],
                "InstanceMarketOptions": {"SpotOptions": {"MaxPrice": "1"}},
                "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
            },
            "market": "spot",
            "subnet": "subnet-1",
        },
    ],
)
def test_every_parameter_is_one_of_run_instances(changes: dict[str, Any]) -> None:
    assert models.unknown_parameters("ec2", sent(**changes)) == []
    assert len(sent(**changes)["ClientToken"]) <= 64


def test_markets() -> None:
    args = {"ImageId": "ami-1", "InstanceMarketOptions": {"SpotOptions": {"MaxPrice": "1"}}}
    spot = sent(market="spot", args=args)
    assert (spot["InstanceMarketOptions.MarketType"], spot["InstanceMarketOptions.SpotOptions.MaxPrice"]) == (
        "spot",
        "1",
    )
    assert not [name for name in sent(market="on-demand", args=args) if name.startswith("InstanceMarketOptions")]


def test_tags_of_spot_requests_are_sent_where_there_is_one() -> None:
    args = {"TagSpecifications": [{"ResourceType": "spot-instances-request", "Tags": [{"Key": "a", "Value": "b"}]}]}
    for market, is_sent in (("spot", True), ("on-demand", False)):
        kinds = [value for name, value in sent(market=market, args=args).items() if name.endswith(".ResourceType")]
        assert ("spot-instances-request" in kinds) == is_sent


def test_the_token_depends_on_the_instance_and_the_offer_only() -> None:
    id = request().id
    tokens = {
        sent(id=id, market=market, instance_type=kind, subnet=subnet)["ClientToken"]
        for market in ("spot", "on-demand")
        for kind in ("a", "b")
        for subnet in ("1", "2")
    }
    assert len(tokens) == 8
    assert all(token.startswith(f"{id}-") and len(token) == len(id) + 17 for token in tokens)
    assert sent(id=id, userdata=b"a")["ClientToken"] == sent(id=id, userdata=b"b")["ClientToken"]


def test_faults_in_args_have_paths() -> None:
    args = {"Imageid": "x", "SecurityGroupIds": "sg", "MetadataOptions": {"HttpTokens": 1}, "EbsOptimized": "{{ .X }}"}
    found = {fault.path: fault.message for fault in arguments.find_faults(args)}
    assert found == {
        ("Imageid",): "expected a field of RunInstances",
        ("SecurityGroupIds",): "expected a list, found 'sg'",
        ("MetadataOptions", "HttpTokens"): "expected a string, found 1",
    }


def test_a_spot_request_that_would_outlive_its_instance_is_refused() -> None:
    """EC2 fulfills a persistent request again after the instance was terminated: an instance without tags."""

    def market(value: str) -> dict[str, Any]:
        return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": value}}}

    path = "InstanceMarketOptions.SpotOptions.SpotInstanceType"
    (fault,) = arguments.find_faults(market("persistent"))
    assert (".".join(map(str, fault.path)), "expected one-time" in fault.message) == (path, True)
    assert not [*arguments.find_faults(market("one-time")), *arguments.find_faults(market("{{ .Vars.kind }}"))]
    with pytest.raises(errors.PermanentError, match=f"args.{path}: expected one-time, found 'persistent'"):
        sent(args=market("persistent"))


async def test_the_launch_budget_slows_down_and_then_throttles() -> None:
    clock = HandClock()
    budget = LaunchBudget(clock, burst=3, rate=2.0)
    for _ in range(3):
        await budget.spend()
    began = clock.monotonic()
    waiting = [asyncio.create_task(budget.spend()) for _ in range(4)]
    await clock.advance(0.5)
    assert [task.done() for task in waiting] == [True, False, False, False]
    await clock.advance(1.5)
    assert all(task.done() for task in waiting)
    assert clock.monotonic() - began == pytest.approx(2.0)
    tasks = [asyncio.create_task(budget.spend()) for _ in range(30)]
    await clock.advance(0.0)
    refused = [task for task in tasks if task.done() and isinstance(task.exception(), errors.ThrottledError)]
    assert 5 < len(refused) < 30, "a wait that would use up the deadline of the call is refused instead"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
