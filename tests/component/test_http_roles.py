"""Every HTTP route with every role, in the own tenant and in another one.

The table has a row for each route of the application: a new route without one fails here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from component.http_world import OPEN, Browser, get_json, served
from component.whole_server import SHARD, World, config, states
from nstance.admin import tokens
from nstance.admin.http import access, rate_limit, routes
from nstance.admin.http.tenants import HEADER
from nstance.admin.tokens import TokenFile
from nstance.clock import SystemRng
from nstance.model.ids import TenantId
from nstance.model.roles import Role
from support.eventually import eventually

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
GROUPS = {
    "acme": {"own": {"template": "web", "size": 2}, "other": {"template": "web", "size": 0}},
    "globex": {"theirs": {"template": "web", "size": 1}},
}
HERE = {"shard": str(SHARD)}
UNLIMITED = routes.Extras(requests=rate_limit.Rate(1e6, 1e6))
OPERATOR_ID = "opr-01jw51srryegh9snf9cmeh3k4q"

# The role that each route requires; None: it is public.
ROUTES: Mapping[tuple[str, str], Role | None] = {
    ("GET", "/"): None,
    ("GET", "/dashboard/{path}"): None,
    ("GET", "/health"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/metrics"): Role.VIEWER,
    ("GET", "/config/status"): Role.VIEWER,
    ("POST", "/config/refresh"): Role.OPERATOR,
    ("POST", "/group/scale"): Role.OPERATOR,
    ("GET", "/group/history"): Role.VIEWER,
    ("POST", "/group/rollback"): Role.OPERATOR,
    ("POST", "/group/resume-rollout"): Role.OPERATOR,
    ("GET", "/groups"): Role.VIEWER,
    ("GET", "/instances"): Role.VIEWER,
    ("GET", "/events"): Role.VIEWER,
    ("GET", "/v1/openapi.json"): None,
    ("GET", "/v1/session"): None,
    ("POST", "/v1/session"): None,
    ("DELETE", "/v1/session"): None,
    ("GET", "/v1/login"): None,
    ("GET", "/v1/login/callback"): None,
    ("GET", "/v1/shards"): Role.VIEWER,
    ("GET", "/v1/alarms"): Role.VIEWER,
    ("GET", "/v1/status"): Role.VIEWER,
    ("GET", "/v1/config"): Role.VIEWER,
    ("GET", "/v1/config/diff"): Role.VIEWER,
    ("POST", "/v1/config/refresh"): Role.OPERATOR,
    ("POST", "/v1/operators/{operator}/revoke"): Role.ADMIN,
    ("GET", "/v1/groups"): Role.VIEWER,
    ("POST", "/v1/groups"): Role.OPERATOR,
    ("GET", "/v1/groups/{group}"): Role.VIEWER,
    ("PATCH", "/v1/groups/{group}"): Role.OPERATOR,
    ("DELETE", "/v1/groups/{group}"): Role.OPERATOR,
    ("GET", "/v1/groups/{group}/plan"): Role.VIEWER,
    ("POST", "/v1/groups/{group}/plan"): Role.VIEWER,
    ("GET", "/v1/groups/{group}/history"): Role.VIEWER,
    ("GET", "/v1/groups/{group}/sizes"): Role.VIEWER,
    ("POST", "/v1/groups/{group}/scale"): Role.OPERATOR,
    ("POST", "/v1/groups/{group}/pause"): Role.OPERATOR,
    ("POST", "/v1/groups/{group}/resume"): Role.OPERATOR,
    ("POST", "/v1/groups/{group}/rollback"): Role.OPERATOR,
    ("POST", "/v1/groups/{group}/resume-rollout"): Role.OPERATOR,
    ("POST", "/v1/pause"): Role.OPERATOR,
    ("POST", "/v1/resume"): Role.OPERATOR,
    ("GET", "/v1/instances"): Role.VIEWER,
    ("POST", "/v1/instances"): Role.OPERATOR,
    ("GET", "/v1/instances/{instance}"): Role.VIEWER,
    ("DELETE", "/v1/instances/{instance}"): Role.OPERATOR,
    ("POST", "/v1/instances/{instance}/replace"): Role.OPERATOR,
    ("POST", "/v1/instances/{instance}/drained"): Role.DRAINER,
    ("POST", "/v1/instances/{instance}/adopt"): Role.OPERATOR,
    ("POST", "/v1/instances/{instance}/release"): Role.OPERATOR,
    ("GET", "/v1/unknown-vms"): Role.VIEWER,
    ("GET", "/v1/events"): Role.VIEWER,
    ("GET", "/v1/watch"): Role.VIEWER,
    ("GET", "/v1/cluster/config"): Role.ADMIN,
    ("GET", "/v1/cluster/journal"): Role.ADMIN,
    ("GET", "/v1/cluster/ca"): Role.VIEWER,
    ("GET", "/v1/cluster/audit"): Role.ADMIN,
    ("GET", "/v1/cluster/audit/verify"): Role.ADMIN,
    ("GET", "/v1/cluster/operators"): Role.ADMIN,
    ("GET", "/v1/forecasts"): Role.VIEWER,
    ("POST", "/v1/forecasts"): Role.VIEWER,
    ("GET", "/v1/forecasts/{forecast}"): Role.VIEWER,
    ("DELETE", "/v1/forecasts/{forecast}"): Role.VIEWER,
}
BODIES: Mapping[tuple[str, str], dict[str, Any]] = {
    ("POST", "/group/scale"): {"group": "own", "size": 3},
    ("POST", "/group/rollback"): {"group": "own"},
    ("POST", "/group/resume-rollout"): {"group": "own"},
    ("POST", "/v1/groups"): {"group": "new", "template": "web", "size": 1},
    ("PATCH", "/v1/groups/{group}"): {"size": 3},
    ("POST", "/v1/groups/{group}/scale"): {"size": 3},
    ("POST", "/v1/instances"): {"group": "own"},
    ("POST", "/v1/forecasts"): {"shard": str(SHARD), "scenario": "spot-storm"},
    ("POST", "/v1/session"): {"token": "wrong"},
}
# Changes of a tenant that are about nothing by name: in another tenant they succeed, and change only that one.
UNNAMED = {"/v1/pause", "/v1/resume", "/v1/config/refresh", "/config/refresh", "/v1/groups"}


@dataclass(frozen=True)
class Site:
    world: World
    browser: Browser
    path: Path

    def token(self, role: Role, tenant: TenantId = ACME, *, person: str = "", life: float | None = None) -> str:
        now, rng = self.world.clock.wall(), SystemRng()
        text, token = tokens.create(person or role.value, role, tenant, now=now, life=life, rng=rng)
        tokens.store(self.path, {**tokens.load(self.path), token.id: token})
        return text

    def acme(self) -> tuple[Any, ...]:
        """All of the tenant that a request could have changed."""
        dynamic = self.world.leader.active_config.configuration.dynamic.groups
        found = {id: i for id, i in self.world.leader.shard.instances.items() if i.tenant == "acme"}
        return found, {key: group for key, group in dynamic.items() if key.tenant == "acme"}


@contextlib.asynccontextmanager
async def site(tmp_path: Path, *, role: Role = Role.ADMIN, agents: bool = False) -> AsyncIterator[Site]:
    path = tmp_path / "tokens.json"
    tokens.store(path, {})
    async with World(tmp_path, config(groups=GROUPS), agents=agents) as world:
        await world.start()
        guard = replace(OPEN, tokens=TokenFile(path, world.clock))
        async with served(world, guard=guard, extras=UNLIMITED, tenant="acme", role=role) as browser:
            yield Site(world, browser, path)


def listed(browser: Browser) -> set[tuple[str, str]]:
    found = set()
    for route in browser.app.router.routes():  # type: ignore[union-attr]
        if route.method != "HEAD" and route.resource is not None:
            found.add((route.method, route.resource.canonical))
    return found


async def ask(browser: Browser, row: tuple[str, str], instance: str, token: str, **query: str) -> tuple[int, str]:
    method, path = row
    names = {"group": "own", "instance": instance, "operator": OPERATOR_ID, "forecast": "x", "path": "app.js"}
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    if path in ("/group/history",):
        query["group"] = "own"
    unselected = (
        "/v1/session",
        "/v1/login",
        "/v1/alarms",
        "/v1/watch",
        "/v1/forecasts",
        "/v1/cluster/ca",
        "/v1/cluster/operators",
        "/dashboard/",
        "/openapi",
    )
    if not path.startswith(unselected) and path not in ("/", "/health", "/metrics", "/v1/openapi.json"):
        query |= HERE
    headers = {"Authorization": f"Bearer {token}"}
    async with browser.request(method, path, params=query, json=BODIES.get(row), headers=headers) as answer:
        is_stream = "event-stream" in answer.headers.get("Content-Type", "")
        return answer.status, "" if is_stream else await answer.text()


async def test_every_route_with_every_role_in_every_tenant(tmp_path: Path) -> None:
    async with site(tmp_path, agents=True) as here:
        world, browser = here.world, here.browser
        assert listed(browser) == ROUTES.keys()
        await eventually(lambda: len(world.leader.shard.instances) == 3)
        await eventually(lambda: all(i.ready_at is not None for i in world.leader.shard.instances.values()))
        given = {(role, tenant): here.token(role, tenant) for role in Role for tenant in (ACME, GLOBEX)}
        last = given[Role.ADMIN, GLOBEX]
        await eventually(lambda: _status(browser, "/v1/groups", last, 200))  # the file is looked at once a second
        instance = states(world, "own", "acme").popitem()[0]
        before = here.acme()
        wrong = []
        for is_allowed in (False, True):  # first all that must change nothing
            for row, required in ROUTES.items():
                for (role, tenant), token in given.items():
                    expected = required is None or role.allows(required)
                    if (expected and tenant == ACME) is not is_allowed:
                        continue
                    status, text = await ask(browser, row, instance, token)
                    is_denied = status == 403 and "requires the role" in text
                    if is_denied is expected or status in (500, 502):
                        wrong.append((*row, role.value, tenant, status, text[:200]))
                    is_change = required is not None and row[0] != "GET" and "plan" not in row[1]
                    if tenant == GLOBEX and expected and is_change and row[1] not in UNNAMED and status < 400:
                        wrong.append((*row, role.value, tenant, status, "found something of another tenant"))
            if not is_allowed:
                assert here.acme() == before
        assert wrong == []
        assert here.acme() != before  # the others do work


async def test_strangers_and_revoked_and_expired_tokens_get_nothing(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        now = here.world.clock.wall()
        short = here.token(Role.ADMIN, life=1)
        revoked = here.token(Role.ADMIN)
        await eventually(lambda: _status(here.browser, "/v1/groups", revoked, 200))
        async with here.browser.post("/v1/session", json={"token": revoked}) as answer:
            assert answer.status == 200
            assert (await answer.json())["role"] == "admin"
        await get_json(here.browser, "/v1/session")  # the session that began with it
        left = {id: token for id, token in tokens.load(here.path).items() if id not in revoked}
        tokens.store(here.path, left)
        await eventually(lambda: _status(here.browser, "/v1/groups", revoked, 401))
        await get_json(here.browser, "/v1/session", 401)
        await eventually(lambda: here.world.clock.wall() > now + 2 and _status(here.browser, "/v1/groups", short, 401))
        good = here.token(Role.ADMIN)
        await eventually(lambda: _status(here.browser, "/v1/groups", good, 200))
        for wrong in ("", "x", good[:-1], good + "0", good.replace("nst_", "nsx_"), good[:16] + good[16:][::-1]):
            assert await _status(here.browser, "/v1/groups", wrong, 401)
        here.path.write_text("{")
        await eventually(lambda: _status(here.browser, "/v1/groups", good, 401))  # unreadable: nobody


async def _status(browser: Browser, path: str, token: str, expected: int) -> bool:
    async with browser.get(path, headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status == expected


async def test_an_open_stream_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "STREAM_CHECK_SECONDS", 0.1)
    async with site(tmp_path) as here:
        token = here.token(Role.VIEWER)
        await eventually(lambda: _status(here.browser, "/v1/groups", token, 200))
        async with here.browser.get("/v1/watch", headers={"Authorization": f"Bearer {token}"}) as answer:
            await answer.content.readany()
            tokens.store(here.path, {})
            with contextlib.suppress(aiohttp.ClientError):
                async with asyncio.timeout(30):
                    while await answer.content.readany():
                        pass


async def test_the_history_names_the_person_behind_every_change(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        token = here.token(Role.OPERATOR, person="ada@example.com")
        await eventually(lambda: _status(here.browser, "/v1/groups", token, 200))
        headers = {"Authorization": f"Bearer {token}"}
        for path, body in (("/v1/groups/own/scale", {"size": 3}), ("/group/scale", {"group": "other", "size": 1})):
            async with here.browser.post(path, json=body, params=HERE, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
        async with here.browser.get("/v1/events", headers=headers) as answer:
            messages = [each["message"] for each in (await answer.json())["events"] if each["reason"] == "config"]
        assert ["for ada@example.com" in message for message in messages] == [True, True], messages


async def test_each_person_sees_its_tenant_and_only_an_admin_another_one(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        seen = {}
        cases = {
            "own": (here.token(Role.VIEWER, ACME), {}),
            "theirs": (here.token(Role.VIEWER, GLOBEX), {}),
            "admin": (here.token(Role.ADMIN, ACME), {HEADER: "globex"}),
            "refused": (here.token(Role.OPERATOR, ACME), {HEADER: "globex"}),
            "nobody": (here.token(Role.ADMIN, ACME), {HEADER: "nobody"}),
        }
        for name, (token, headers) in cases.items():
            await eventually(lambda token=token: _not_status(here.browser, token, 401))  # type: ignore[misc]
            headers = {"Authorization": f"Bearer {token}", **headers}
            async with here.browser.get("/v1/groups", headers=headers) as answer:
                body = await answer.json(content_type=None)
                seen[name] = sorted(g["group"] for g in body["groups"]) if answer.status == 200 else answer.status
        assert seen == {
            "own": ["other", "own"],
            "theirs": ["theirs"],
            "admin": ["theirs"],
            "refused": 403,
            "nobody": 404,
        }


async def _not_status(browser: Browser, token: str, unexpected: int) -> bool:
    async with browser.get("/v1/session", headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status != unexpected


async def test_a_server_without_the_role_admin_serves_its_own_tenant(tmp_path: Path) -> None:
    async with site(tmp_path, role=Role.OPERATOR) as here:
        token = here.token(Role.VIEWER, GLOBEX)
        await eventually(lambda: _not_status(here.browser, token, 401))
        async with here.browser.get("/v1/groups", headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status == 403
            assert "serves the tenant acme, not globex" in await answer.text()
