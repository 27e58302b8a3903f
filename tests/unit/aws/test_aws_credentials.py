"""Credentials: who waits for a service that does not answer, and what an error says."""

import asyncio
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiohttp import web

from contracts.provider_worlds import scope
from nstance.aws.client import EC2, AwsClient
from nstance.aws.credentials import REFRESH_BEFORE_SECONDS
from nstance.aws.signing import Credentials
from nstance.clock import SystemClock
from nstance.clouds.credentials import RETRY_SECONDS, FreshCredentials
from nstance.clouds.errors import CredentialsError
from nstance.dev import loopback
from nstance.providers.aws.provider import AwsSettings, open_aws
from support.hand_clock import HandClock

LIFE_SECONDS = 3600.0
HANGS_SECONDS = 5.0


class Service:
    """One that hangs, unless it works."""

    def __init__(self, clock: HandClock) -> None:
        self.clock, self.fetches, self.works = clock, 0, True

    async def fetch(self) -> Credentials:
        self.fetches += 1
        if not self.works:
            await self.clock.sleep(HANGS_SECONDS)
            raise CredentialsError("it does not answer")
        return Credentials(f"key-{self.fetches}", "s", "t", self.clock.wall() + LIFE_SECONDS)


async def test_calls_do_not_wait_again_and_again_while_the_old_credentials_are_valid() -> None:
    clock = HandClock()
    service = Service(clock)
    source = FreshCredentials("AWS credentials", service.fetch, clock, refresh_before=REFRESH_BEFORE_SECONDS)
    await source.get()
    await clock.advance(LIFE_SECONDS - REFRESH_BEFORE_SECONDS + 1.0)
    service.works = False
    assert [(await source.get()).access_key for _ in range(20)] == ["key-1"] * 20
    await clock.advance(HANGS_SECONDS)
    assert (await source.get()).access_key == "key-1"
    assert service.fetches == 2, "one for all of them"
    service.works = True
    await clock.advance(RETRY_SECONDS)
    assert (await source.get()).access_key == "key-1", "nobody waits for the new ones"
    await clock.advance(0.0)
    assert (await source.get()).access_key == "key-3"


async def test_callers_without_credentials_share_one_failure_and_the_next_one_tries_again() -> None:
    clock = HandClock()
    service = Service(clock)
    service.works = False
    source = FreshCredentials("AWS credentials", service.fetch, clock, refresh_before=REFRESH_BEFORE_SECONDS)
    waiting = [asyncio.create_task(source.get()) for _ in range(20)]
    await clock.advance(HANGS_SECONDS)
    for task in waiting:
        assert isinstance(task.exception(), CredentialsError)
    assert service.fetches == 1
    service.works = True
    assert (await source.get()).access_key == "key-2"


async def test_a_role_that_may_not_be_assumed_is_named() -> None:
    message = (
        "User: arn:aws:iam::1:user/a is not authorized to perform: sts:AssumeRole on resource: arn:aws:iam::2:role/b"
    )
    asked: list[Mapping[str, str]] = []

    async def refuse(request: web.Request) -> web.StreamResponse:
        asked.append(dict(urllib.parse.parse_qsl(await request.text())))
        error = f"<Error><Type>Sender</Type><Code>AccessDenied</Code><Message>{message}</Message></Error>"
        return web.Response(status=403, text=f"<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>")

    async with loopback.answering(refuse) as url:
        client = AwsClient(
            region="eu-west-1",
            clock=SystemClock(),
            endpoint_url=url,
            server="a server/" + "x" * 80,
            environment={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
            role_arn="arn:aws:iam::2:role/b",
        )
        with pytest.raises(CredentialsError, match="not authorized to perform: sts:AssumeRole"):
            await client.query(EC2, "DescribeInstances", {})
        await client.close()
    assert asked[0]["RoleSessionName"] == ("nstance-a-server-" + "x" * 80)[:64]


async def test_the_configured_profile_wins_over_keys_of_the_environment(tmp_path: Path) -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "of-the-environment",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }
    profile = "[prod]\naws_access_key_id = of-the-profile\naws_secret_access_key = c\n"
    (tmp_path / "credentials").write_text(profile)
    settings = AwsSettings(region="eu-west-1", profile="prod")
    provider = open_aws(scope(), settings, None, clock=SystemClock(), server="", environment=environment)
    assert (await provider._client._credentials.get()).access_key == "of-the-profile"
    await provider.close()


async def test_the_metadata_service_is_never_asked_through_a_proxy() -> None:
    """A proxy on another EC2 instance would answer with the role and the ID of that one."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text="i-0123456789abcdef0")

    async with loopback.answering(answer) as url:
        environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url, "HTTP_PROXY": "http://127.0.0.1:1"}
        client = AwsClient(region="eu-west-1", clock=SystemClock(), environment=environment)
        assert await client.metadata.instance_id() == "i-0123456789abcdef0"
        await client.close()
