"""Signed URLs of the agent: who can sign, and what a group waits for."""

import asyncio
import urllib.parse

import pytest

from nstance.clock import SystemClock
from nstance.objects import errors, memory, s3, wrapped
from nstance.objects.port import Key, sign_url
from nstance.server.workload.agent_download import AgentDownload

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def bucket() -> s3.S3Store:
    return s3.S3Store("my-bucket", region="eu-west-1", environment={})


async def test_s3_signs_a_url_that_ends() -> None:
    url = await sign_url(wrapped.PrefixedStore(bucket(), "demo"), Key("agents/agent.tar.gz"), seconds=3600)
    parts = urllib.parse.urlsplit(url)
    assert parts.scheme == "https"
    assert parts.path.endswith("/demo/agents/agent.tar.gz")
    query = dict(urllib.parse.parse_qsl(parts.query))
    assert query["X-Amz-Expires"] == "3600"
    assert query["X-Amz-Credential"].startswith("AKID/")
    assert query["X-Amz-Security-Token"] == "token"
    assert len(query["X-Amz-Signature"]) == 64
    assert "secret" not in url


async def test_a_store_that_cannot_sign_says_what_to_do() -> None:
    with pytest.raises(errors.PermissionDeniedError, match=r"expected a store that signs URLs .* use a URL instead"):
        await sign_url(wrapped.PrefixedStore(memory.MemoryStore(SystemClock()), "demo"), Key("agent"), seconds=60)


@pytest.mark.parametrize("signs", [True, False])
async def test_the_url_or_the_reason_is_known_soon(signs: bool) -> None:
    changed = asyncio.Event()
    store = bucket() if signs else memory.MemoryStore(SystemClock())
    download = AgentDownload(store, clock=SystemClock(), on_change=changed.set)
    download.configure(["agents/amd64"])
    task = asyncio.create_task(download.run())
    try:
        await asyncio.wait_for(changed.wait(), 10)
    finally:
        task.cancel()
    assert (list(download.urls()) == ["agents/amd64"]) == signs
    assert bool(download.problem("agents/amd64")) != signs
    download.configure([])
    assert download.urls() == {}
