"""Answers that are none of AWS: of a proxy, a gateway or another program. None is read as an empty list."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from nstance.aws.client import EC2, SSM, AwsClient
from nstance.aws.errors import AwsError
from nstance.clock import SystemClock
from nstance.clouds.errors import NoAnswerError
from nstance.dev import loopback

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@asynccontextmanager
async def client_of(status: int, body: bytes) -> AsyncIterator[AwsClient]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body)

    async with loopback.answering(answer) as url:
        client = AwsClient(region="eu-west-1", clock=SystemClock(), endpoint_url=url, environment=KEYS)
        try:
            yield client
        finally:
            await client.close()


@pytest.mark.parametrize(
    "body",
    [b"", b"ok", b"{}", b"<html><body>Sign in</body></html>", b"<DescribeSubnetsResponse/>", b"<DescribeInstancesRes"],
)
async def test_a_success_that_is_not_of_the_call_has_an_unknown_outcome(body: bytes) -> None:
    async with client_of(200, body) as client:
        with pytest.raises(NoAnswerError, match="no answer of AWS"):
            await client.query(EC2, "DescribeInstances", {})


async def test_an_empty_list_of_aws_is_one() -> None:
    body = b'<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet/></DescribeInstancesResponse>'
    async with client_of(200, body) as client:
        assert await client.query(EC2, "DescribeInstances", {}) == {"reservationSet": ""}


@pytest.mark.parametrize("body", [b"", b"[]", b"<html/>", b"null"])
async def test_a_success_of_a_json_service_is_an_object(body: bytes) -> None:
    async with client_of(200, body) as client:
        with pytest.raises(NoAnswerError, match="no answer of AWS"):
            await client.json(SSM, "GetParameter", {})


@pytest.mark.parametrize("status", [302, 403, 404, 407, 408])
async def test_a_refusal_that_is_none_of_aws_has_an_unknown_outcome(status: int) -> None:
    async with client_of(status, b"<html><body>Access denied by policy</body></html>") as client:
        with pytest.raises(NoAnswerError, match=f"HTTP {status} without an error of AWS"):
            await client.query(EC2, "RunInstances", {})


@pytest.mark.parametrize(("status", "is_throttled", "is_server_fault"), [(429, True, False), (502, False, True)])
async def test_a_status_that_says_enough(status: int, is_throttled: bool, is_server_fault: bool) -> None:
    async with client_of(status, b"Bad Gateway") as client:
        with pytest.raises(AwsError) as caught:
            await client.query(EC2, "RunInstances", {})
    assert (caught.value.is_throttled, caught.value.is_server_fault) == (is_throttled, is_server_fault)
