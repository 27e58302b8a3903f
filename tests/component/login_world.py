"""A browser that logs in with an identity provider."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from component.http_world import OPEN, Browser, served
from component.whole_server import World, config
from nstance.admin.http.oidc.provider import Provider
from nstance.admin.http.oidc.settings import CALLBACK, OidcSettings, Right
from nstance.admin.http.routes import Extras
from nstance.model.ids import TenantId
from nstance.model.roles import Role

GROUPS = {tenant: {f"web-{tenant}": {"template": "web", "size": 1}} for tenant in ("acme", "globex")}
REDIRECT = f"http://127.0.0.1{CALLBACK}"
RIGHTS = {
    "platform": Right(Role.ADMIN, TenantId("acme")),
    "authors": Right(Role.VIEWER, TenantId("globex")),
}
MAX_REDIRECTS = 10


def settings(issuer: str, *, client: str, secret: str) -> OidcSettings:
    return OidcSettings(
        issuer=issuer,
        client_id=client,
        client_secret=secret,
        redirect_url=REDIRECT,
        scopes=("openid", "email", "groups"),
        person_claim="email",
        groups_claim="groups",
        groups=RIGHTS,
        ca_file=None,
    )


@dataclass(frozen=True)
class Logins:
    world: World
    browser: Browser

    async def begin(self) -> str:
        """Where the browser is sent."""
        async with self.browser.get("/v1/login", allow_redirects=False) as answer:
            assert answer.status == 302, await answer.text()
            return answer.headers["Location"]

    async def at_provider(self, address: str) -> str:
        """Follows redirects until the provider sends the browser back: with what."""
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            for _ in range(MAX_REDIRECTS):
                async with session.get(address, allow_redirects=False) as answer:
                    assert answer.status in (302, 303), await answer.text()
                    location = answer.headers["Location"]
                address = f"{answer.url.origin()}{location}" if location.startswith("/") else location
                if address.startswith(REDIRECT):
                    return urlsplit(address).query
        raise AssertionError(f"more than {MAX_REDIRECTS} redirects")

    async def back(self, query: str) -> tuple[int, str]:
        async with self.browser.get(f"{CALLBACK}?{query}", allow_redirects=False) as answer:
            return answer.status, await answer.text()

    async def log_in(self) -> tuple[int, str]:
        return await self.back(await self.at_provider(await self.begin()))


@contextlib.asynccontextmanager
async def logins(tmp_path: Path, found: OidcSettings) -> AsyncIterator[Logins]:
    guard = replace(OPEN, has_logins=True)
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        extras = Extras(provider=Provider(found, world.clock))
        async with served(world, guard=guard, extras=extras, tenant="acme", role=Role.ADMIN) as browser:
            yield Logins(world, browser)
