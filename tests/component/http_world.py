"""`nstance-admin serve` in this process, in front of whole servers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp.test_utils import TestClient, TestServer

from component.admin_shell import operator_addresses, shell
from component.whole_server import SECONDS, SHARD, World
from nstance.admin import client as clients
from nstance.admin.client import Client
from nstance.admin.http import openapi, routes
from nstance.admin.http.access import Access
from nstance.model.ids import ShardId
from nstance.model.roles import Role

NOBODY = Access(token=None, tls_cert=None, tls_key=None, client_ca=None)
OPEN = Access(token=None, tls_cert=None, tls_key=None, client_ca=None, allow_changes=True)
TOKEN = "a-token-that-is-long-enough"
GUARDED = Access(token=TOKEN, tls_cert=None, tls_key=None, client_ca=None, allow_changes=True)
DEAD = ShardId("dead")

Browser = TestClient[Any, Any]


@contextlib.asynccontextmanager
async def served(
    world: World,
    *,
    guard: Access = NOBODY,
    dead: bool = False,
    extras: routes.Extras | None = None,
    tenant: str = "default",
    role: Role = Role.OPERATOR,
) -> AsyncIterator[Browser]:
    """`tenant` and `role`: of the identity that it uses."""
    found = await shard_clients(world, dead=dead, tenant=tenant, role=role)
    async with serving(world, found, guard=guard, extras=extras) as browser:
        yield browser


async def shard_clients(
    world: World, *, dead: bool = False, tenant: str = "default", role: Role = Role.OPERATOR
) -> list[Client]:
    admin = await shell(world, tenant, role)
    identity = clients.load(admin.identity, now=world.clock.wall())
    addresses = {SHARD: tuple(operator_addresses(world).split("|"))}
    if dead:
        addresses[DEAD] = ("127.0.0.1:1",)
    return [
        Client(shard, where, identity=identity, timeout=SECONDS, clock=world.clock)
        for shard, where in addresses.items()
    ]


@contextlib.asynccontextmanager
async def serving(
    world: World, found: list[Client], *, guard: Access, extras: routes.Extras | None = None
) -> AsyncIterator[Browser]:
    async with TestClient(TestServer(routes.application(found, guard, world.clock, extras))) as browser:
        try:
            yield browser
        finally:
            for each in found:
                each.close()


async def get_json(browser: Browser, path: str, code: int = 200, /, **query: str) -> Any:
    async with browser.get(path, params=query) as answer:
        assert answer.status == code, await answer.text()
        return await answer.json(content_type=None)


async def post(browser: Browser, path: str, body: Any = None, code: int = 200, /, **query: str) -> Any:
    return await send(browser, "POST", path, body, code, **query)


async def send(browser: Browser, method: str, path: str, body: Any = None, code: int = 200, /, **query: str) -> Any:
    """Again while the shard is unsure who leads, which happens to servers that share one busy process with their test."""
    while True:
        async with browser.request(method, path, params=query, json=body) as answer:
            if answer.status != 503 or code == 503:
                assert answer.status == code, await answer.text()
                return await answer.json(content_type=None)
            assert "may not be the leader" in await answer.text()
        await asyncio.sleep(0.05)


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Messages of a stream: their fields; comments left out."""
    fields: dict[str, Any] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if not line and fields:
            if "data" in fields:  # without it: how far everything was read
                fields["data"] = json.loads(fields["data"])
            yield fields
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def check(value: Any, schema: Any, schemas: Any = openapi.SCHEMAS) -> None:
    """As much of JSON Schema as the descriptions use."""
    if "anyOf" in schema:
        for each in schema["anyOf"]:
            with contextlib.suppress(AssertionError):
                return check(value, each, schemas)
        raise AssertionError(value, schema)
    if "$ref" in schema:
        return check(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    kinds: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "null": (type(None),),
        "array": (list,),
        "object": (dict,),
    }
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert type(value) in {each for kind in wanted for each in kinds[kind]}, (value, schema)
    if "enum" in schema:
        assert value in schema["enum"]
    if isinstance(value, list):
        for each in value:
            check(each, schema["items"], schemas)
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        assert set(schema.get("required", ())) <= value.keys(), (value, schema)
        for name, each in value.items():
            inner = fields.get(name, schema.get("additionalProperties", {}))
            assert inner is not False, f"{name} is not described"
            if inner:
                check(each, inner, schemas)
    return None
