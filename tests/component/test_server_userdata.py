"""Userdata from URLs: a local web server, named in the allow-list."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from component.whole_server import Json, World, config, states
from nstance.providers.port import Traits
from nstance.server.waits import WAITS, Waits
from nstance.server.workload import http_fetch
from nstance.server.workload.http_fetch import FetchError, fetch
from nstance.tasks.backoff import Backoff
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

LOCAL = ["127.0.0.1"]


class Site:
    """A web server whose answers are set by the test."""

    def __init__(self) -> None:
        self.body, self.etag, self.status = "boot {{ .Instance.ID }} {{ .Nonce }}", '"1"', 200
        self.location = ""
        self.answers: list[int] = []
        self.url = ""

    async def page(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("If-None-Match") == self.etag and self.status == 200:
            self.answers.append(304)
            return web.Response(status=304)
        self.answers.append(self.status)
        return web.Response(status=self.status, text=self.body, headers={"ETag": self.etag})

    async def redirect(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": self.location})

    async def endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    async def silent(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits that long")

    async def packed(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"...", headers={"Content-Encoding": "gzip"})


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site, app = Site(), web.Application()
    for name in ("page", "redirect", "endless", "silent", "packed"):
        app.router.add_get(f"/{name}", getattr(site, name))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    place = web.TCPSite(runner, "127.0.0.1", 0)
    await place.start()
    host, port = runner.addresses[0][:2]
    site.url = f"http://{host}:{port}"
    yield site
    await runner.cleanup()


class QuickWorld(World):
    waits = Waits(userdata_retry=Backoff(0.05, 0.2))


def configuration(url: str, size: int = 1, **shard: Any) -> Json:
    groups = {"acme": {"web": {"template": "web", "size": size}}}
    made = config(groups=groups, **{"userdata_hosts": LOCAL, **shard})
    template = made["templates"]["web"] | {"userdata": {"source": "url", "content": url}}
    return made | {"templates": {"web": template}}


def booted_with(world: World) -> list[str]:
    return [world.agents[id].userdata for id in sorted(states(world, "web", "acme"))]


async def running(world: World, count: int) -> None:
    await eventually(lambda: list(states(world, "web", "acme").values()).count("running") == count)


# ---- fetching


async def test_a_page_with_its_etag(site: Site) -> None:
    page = await fetch(f"{site.url}/page", private_hosts=LOCAL)
    assert page is not None
    assert (page.body.decode(), page.etag) == (site.body, '"1"')
    assert await fetch(f"{site.url}/page", private_hosts=LOCAL, etag=page.etag) is None
    site.etag = '"2"'
    assert (await fetch(f"{site.url}/page", private_hosts=LOCAL, etag=page.etag)) is not None


async def test_a_local_address_that_nobody_allowed(site: Site) -> None:
    with pytest.raises(FetchError, match=r"shard\.userdata_hosts"):
        await fetch(f"{site.url}/page")
    assert site.answers == []


async def test_a_redirect_on_the_same_host_is_followed_a_loop_is_not(site: Site) -> None:
    site.location = "/page"
    assert await fetch(f"{site.url}/redirect", private_hosts=LOCAL) is not None
    site.location = "/redirect"
    with pytest.raises(FetchError, match="more than 3 redirects"):
        await fetch(f"{site.url}/redirect", private_hosts=LOCAL)


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://169.254.169.254/latest/meta-data/", "never fetched from"),
        ("http://10.0.0.1/", "not public"),
        ("http://localhost:{port}/page", "not public"),  # allowed by name, but not for others to send us to
        ("file:///etc/passwd", "only http and https"),
        ("", "more than 3 redirects"),
    ],
)
async def test_a_redirect_leads_nowhere_private(site: Site, location: str, why: str) -> None:
    site.location = location.format(port=site.url.rpartition(":")[2])
    with pytest.raises(FetchError, match=why):
        await fetch(f"{site.url}/redirect", private_hosts=[*LOCAL, "localhost"])
    assert site.answers == []


async def test_an_answer_without_end_is_cut_off(site: Site) -> None:
    with pytest.raises(FetchError, match="more than 1048576 bytes"):
        await fetch(f"{site.url}/endless", private_hosts=LOCAL)


async def test_an_answer_that_does_not_come_is_not_waited_for(site: Site) -> None:
    with pytest.raises(FetchError, match=r"no answer within 0\.2 s"):
        await fetch(f"{site.url}/silent", private_hosts=LOCAL, timeout=0.2)


async def test_what_is_packed_is_not_unpacked(site: Site) -> None:
    with pytest.raises(FetchError, match="compressed"):
        await fetch(f"{site.url}/packed", private_hosts=LOCAL)


async def test_a_name_is_resolved_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the connection nobody can change where a name leads."""
    loop, asked = asyncio.get_running_loop(), []
    real = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **rest: Any) -> Any:
        asked.append(host)
        return await real("127.0.0.1" if host == "files.internal" else host, port, **rest)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)
    port = site.url.rpartition(":")[2]
    assert await fetch(f"http://files.internal:{port}/page", private_hosts=["FILES.internal"]) is not None
    assert asked.count("files.internal") == 1


async def test_an_error_says_what_and_not_where(site: Site) -> None:
    site.status = 500
    with pytest.raises(FetchError, match="the answer was 500") as problem:
        await fetch(f"{site.url}/page?token=secret", private_hosts=LOCAL)
    assert "secret" not in str(problem.value)
    closed = "http://127.0.0.1:1/page?token=secret"
    with pytest.raises(FetchError, match="failed to connect") as refused:
        await fetch(closed, private_hosts=LOCAL)
    assert "secret" not in str(refused.value)


# ---- whole servers


async def test_instances_boot_with_what_is_behind_the_url(site: Site, tmp_path: Path) -> None:
    async with QuickWorld(tmp_path, configuration(f"{site.url}/page", 2)) as world:
        await world.start()
        await running(world, 2)
        ids = sorted(states(world, "web", "acme"))
        assert [text.split()[:2] for text in booted_with(world)] == [["boot", id] for id in ids]
        assert all(len(text.split()[2]) > 50 for text in booted_with(world))  # the nonce


async def test_the_last_good_copy_serves_and_a_new_one_rotates_nobody(site: Site, tmp_path: Path) -> None:
    async with QuickWorld(tmp_path, configuration(f"{site.url}/page")) as world:
        world.waits = replace(world.waits, userdata_refresh=0.05)
        server = await world.start()
        operator = await world.operator("acme")
        await running(world, 1)
        await eventually(lambda: site.answers.count(304) >= 2)  # asked for by its ETag
        assert site.answers.count(200) == 1
        site.status = 503
        url = f"{site.url}/page"
        await eventually(lambda: server.lead_now.supplies.userdata.problem(url) == "the answer was 503")
        await operator.call("UpsertGroup", key="web", config=GroupConfig(size=2))
        await running(world, 2)
        site.body, site.etag, site.status = "{{ if }}", '"bad"', 200
        await eventually(lambda: "not a valid template" in server.lead_now.supplies.userdata.problem(url))
        site.body, site.etag = "second", '"2"'
        await eventually(lambda: server.lead_now.supplies.userdata.text(url) == b"second")
        await operator.call("UpsertGroup", key="web", config=GroupConfig(size=3))
        await running(world, 3)
        assert [text.split()[0] for text in booted_with(world)] == ["boot", "boot", "second"]
        assert set(states(world, "web", "acme").values()) == {"running"}


async def test_the_last_good_copy_outlives_the_server(site: Site, tmp_path: Path) -> None:
    async with QuickWorld(tmp_path, configuration(f"{site.url}/page")) as world:
        first = await world.start()
        await running(world, 1)
        await first.stop()
        site.status = 503
        server = await world.start()
        world.configure(configuration(f"{site.url}/page", 2))
        await server.active_config.refresh()
        await running(world, 2)


async def test_without_any_copy_the_group_waits_and_says_why(site: Site, tmp_path: Path) -> None:
    site.status = 404
    async with QuickWorld(tmp_path, configuration(f"{site.url}/page?token=secret")) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: "404" in str(world.leader.lead_now.blocked_groups.reasons))
        [group] = (await operator.call("ListGroups")).groups
        assert group.last_error == f"userdata cannot be fetched from {site.url}/page: the answer was 404"
        assert states(world, "web", "acme") == {}
        site.status = 200
        await running(world, 1)
        reasons = [event.reason for event in (await operator.call("ListEvents", group="web")).events]
        assert reasons[:2] == ["blocked", "recovered"]


async def test_a_host_is_allowed_by_configuration_and_at_once(site: Site, tmp_path: Path) -> None:
    async with World(tmp_path, configuration(f"{site.url}/page", userdata_hosts=[])) as world:
        world.waits = Waits(userdata_retry=Backoff(600.0, 600.0))
        server = await world.start()
        await eventually(lambda: "not public" in str(world.leader.lead_now.blocked_groups.reasons))
        assert site.answers == []
        world.configure(configuration(f"{site.url}/page"))
        await server.active_config.refresh()
        await running(world, 1)


async def test_a_provider_without_userdata_never_fetches_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nstance.providers.memory.MemoryProvider.traits", Traits(reads_userdata=False))
    async with QuickWorld(tmp_path, configuration(f"{site.url}/page")) as world:
        await world.start()
        await running(world, 1)
        assert (booted_with(world), site.answers) == ([""], [])


def test_limits_are_the_documented_ones() -> None:
    assert (http_fetch.MAX_BODY_BYTES, http_fetch.TIMEOUT_SECONDS, WAITS.userdata_refresh) == (1 << 20, 10.0, 300.0)
