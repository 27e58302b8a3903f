"""The provider in a real account, if `NSTANCE_AWS_TEST_SUBNET` names a subnet of it: the heart of the contract.

    make test-aws NSTANCE_AWS_TEST_SUBNET=subnet-0123456789abcdef0

It creates one t4g.nano and deletes it again, which costs less than a cent. `NSTANCE_AWS_TEST_IMAGE` replaces Amazon Linux.
"""

import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from contracts.provider_worlds import request, scope
from nstance.clock import SystemClock
from nstance.providers import errors
from nstance.providers.aws.provider import AwsProvider, AwsSettings, open_aws
from nstance.providers.port import CloudPlan, CreateRequest, ImageQuery, PlannedLaunch, Status
from support.eventually import eventually

SUBNET, IMAGE = (os.environ.get(f"NSTANCE_AWS_TEST_{name}", "") for name in ("SUBNET", "IMAGE"))
PARAMETER = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64"
TYPE = "t4g.nano"
SECONDS = 300.0

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not SUBNET, reason="needs an account: NSTANCE_AWS_TEST_SUBNET is not set"),
]


@pytest.fixture
async def provider() -> AsyncIterator[AwsProvider]:
    """Of a cluster that nobody else has. What is left of it is deleted, whatever happens."""
    cluster = f"nstance-test-{secrets.token_hex(4)}"
    made = open_aws(scope(cluster, "test"), AwsSettings(region=""), None, clock=SystemClock(), server="test")
    yield made
    for vm in await made.list():
        if vm.status is not Status.DELETED:
            await made.delete(vm.id, vm.provider_id)
    await made.close()


@pytest.fixture
async def wanted(provider: AwsProvider) -> CreateRequest:
    image = IMAGE or await provider.find_image(ImageQuery(filters={}, parameter=PARAMETER))
    return request(subnet=SUBNET, instance_type=TYPE, args={"ImageId": image}, userdata=b"#!/bin/sh\n")


async def test_an_instance_from_its_creation_to_its_end(provider: AwsProvider, wanted: CreateRequest) -> None:
    launch = PlannedLaunch(
        template="worker", instance_types=(TYPE,), markets=(), subnets=(SUBNET,), args=dict(wanted.args)
    )
    assert await provider.preflight(CloudPlan(launches=[launch], subnet_pools={"main": [SUBNET]}, zone="")) == []
    vm = await provider.create(wanted)
    assert (await provider.create(replace(wanted, may_exist=True))).provider_id == vm.provider_id
    assert (await provider.create(wanted)).provider_id == vm.provider_id  # by its ClientToken

    async def is_listed_as(*statuses: Status) -> bool:
        return [each.provider_id for each in await provider.list() if each.status in statuses] == [vm.provider_id]

    await eventually(lambda: is_listed_as(Status.RUNNING), seconds=SECONDS, interval=2.0)
    found = await provider.get(vm.id, None)
    assert (found.id, found.group, bool(found.ip4)) == (wanted.id, wanted.group, True)
    assert isinstance(await provider.console_output(vm.id, vm.provider_id), str)
    await provider.delete(vm.id, vm.provider_id)

    async def is_deleted() -> bool:
        return (await provider.get(vm.id, vm.provider_id)).status is Status.DELETED

    await eventually(is_deleted, seconds=SECONDS, interval=2.0)
    with pytest.raises(errors.PermanentError, match="was deleted"):
        await provider.create(wanted)


async def test_an_image_that_does_not_exist_is_named(provider: AwsProvider, wanted: CreateRequest) -> None:
    with pytest.raises(errors.PermanentError, match=r"args\.ImageId"):
        await provider.create(replace(wanted, args={"ImageId": "ami-0123456789abcdef9"}))
    assert [vm for vm in await provider.list() if vm.status is not Status.DELETED] == []
