"""The endpoint that plays EC2 in `make bench` answers in a form that the provider for AWS accepts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from bench.ec2_endpoint import Endpoint

from contracts.provider_worlds import request, scope
from nstance.clock import SystemClock
from nstance.providers.aws.provider import AwsProvider, AwsSettings, open_aws
from nstance.providers.errors import NoCapacityError
from nstance.providers.port import FixedAddress, Status


@contextlib.asynccontextmanager
async def ec2() -> AsyncIterator[tuple[Endpoint, AwsProvider]]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", endpoint.serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_SERVICE_ENDPOINT": url}
    provider = open_aws(
        scope(),
        AwsSettings(region="eu-north-1", endpoint=url),
        FixedAddress("10.0.0.250"),
        clock=SystemClock(),
        server="s1",
        environment=keys,
    )
    try:
        yield endpoint, provider
    finally:
        await provider.close()
        await runner.cleanup()


def test_an_instance_is_created_listed_refused_and_deleted() -> None:
    async def check() -> None:
        async with ec2() as (endpoint, provider):
            asked = request(args={"ImageId": "ami-0123456789abcdef0"}, instance_type="m7g.large")
            vm = await provider.create(asked)
            assert [each.id for each in await provider.list()] == [asked.id]
            endpoint.exhausted = "m7g.large"
            with pytest.raises(NoCapacityError):
                await provider.create(request(args=asked.args, instance_type="m7g.large"))
            assert await provider.delete(asked.id, vm.provider_id) in {Status.DELETED, Status.DELETING}

    asyncio.run(check())


def test_the_leader_address_is_assigned() -> None:
    async def check() -> None:
        async with ec2() as (endpoint, provider):
            await provider.assign_leader_address()
            assert endpoint.assigned

    asyncio.run(check())
