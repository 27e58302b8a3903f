"""What the clients of clouds share: proxies from the usual variables, and whole bodies."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from nstance import http_client
from nstance.aws.client import EC2, AwsClient
from nstance.clock import SystemClock
from nstance.gcp.client import GoogleClient
from nstance.gcp.endpoints import COMPUTE
from nstance.gcp.metadata import MetadataError
from nstance.http_client import proxy_for

URL = "https://ec2.eu-west-1.amazonaws.com/"


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        (URL, {}, None),
        (URL, {"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        (URL, {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        (URL, {"HTTPS_PROXY": ""}, None),
        (URL, {"HTTP_PROXY": "http://proxy:3128"}, None),
        ("http://10.0.0.1/", {"HTTP_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        (URL, {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1, .amazonaws.com"}, None),
        ("http://169.254.169.254/", {"HTTP_PROXY": "http://proxy:3128", "no_proxy": "169.254.169.254"}, None),
        (URL, {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "*"}, None),
    ],
)
def test_the_variables_choose_the_proxy(url: str, environment: dict[str, str], expected: str | None) -> None:
    assert proxy_for(url, environment) == expected


@contextlib.asynccontextmanager
async def serving_proxy(text: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, and what it was asked for."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.url.host}{request.path}")
        return web.Response(text=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_calls_of_aws_go_through_the_proxy() -> None:
    async with serving_proxy("<DescribeInstancesResponse><a>1</a></DescribeInstancesResponse>") as (url, asked):
        environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "HTTP_PROXY": url}
        client = AwsClient(
            region="eu-west-1", clock=SystemClock(), endpoint_url="http://ec2.invalid", environment=environment
        )
        try:
            assert await client.query(EC2, "DescribeInstances", {}) == {"a": "1"}
        finally:
            await client.close()
        assert asked == ["ec2.invalid/"]


async def test_calls_of_google_go_through_the_proxy_but_not_to_the_metadata_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none starts a thread, in which aiohttp would read the variables."""

    def start_thread(*args: object) -> None:
        raise AssertionError(f"a thread was started: {args}")

    monkeypatch.setattr(asyncio, "to_thread", start_thread)
    (tmp_path / "subject").write_text("token of the other side")
    source = {"type": "external_account", "credential_source": {"file": str(tmp_path / "subject")}}
    (tmp_path / "login.json").write_text(json.dumps({**source, "token_url": "http://token.invalid/token"}))
    async with serving_proxy('{"access_token": "t", "expires_in": 3600}') as (url, asked):
        environment = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "login.json"),
            COMPUTE.variable: "http://compute.invalid",
            "GCE_METADATA_HOST": "metadata.invalid",
            "HTTP_PROXY": url,
        }
        client = GoogleClient(clock=SystemClock(), environment=environment)
        try:
            for _ in range(3):
                await client.json(COMPUTE, "GET", "projects/p")
            with pytest.raises(MetadataError):
                await client.metadata.project()
        finally:
            await client.close()
        assert asked == ["token.invalid/token", *["compute.invalid/compute/v1/projects/p"] * 3]


def test_the_variables_are_read_once_for_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(http_client, "proxy_for", lambda url, environment: asked.append(url))
    found = http_client.Proxies({})
    for path in ("a", "b", "a"):
        assert found.find(f"https://compute.googleapis.com/{path}") is None
    assert asked == ["https://compute.googleapis.com/a"]


class Arriving:
    """A body that arrives in parts."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    async def read(self, n: int, /) -> bytes:
        return self.parts.pop(0)[:n] if self.parts else b""


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((b"ab", b"c"), b"abc"),
        ((), b""),
        ((b"abcd",), b"abcd"),
        ((b"abcdefgh",), b"abcde"),
        ((b"abc", b"defgh"), b"abcde"),
    ],
)
async def test_a_body_is_read_whole_up_to_a_limit(parts: tuple[bytes, ...], expected: bytes) -> None:
    """One byte more than the limit says that it is longer."""
    assert await http_client.read_body(Arriving(*parts), 4) == expected
