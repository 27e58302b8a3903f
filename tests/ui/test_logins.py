"""Logging in with an identity provider of another site, in a real browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from component.http_world import OPEN, served
from component.login_world import settings
from component.whole_server import World, config
from nstance.admin.http.oidc.provider import Provider
from nstance.admin.http.oidc.settings import CALLBACK
from nstance.admin.http.routes import Extras
from nstance.model.roles import Role
from support import oidc_provider
from support.oidc_provider import CLIENT, SECRET
from ui.browsing import tab

GROUPS = {tenant: {f"web-{tenant}": {"template": "web", "size": 1}} for tenant in ("acme", "globex")}


async def test_a_person_logs_in_at_another_site_and_sees_its_tenant(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        async with oidc_provider.running(world.clock.wall) as identities:
            identities.issuer = identities.issuer.replace("127.0.0.1", "localhost")  # another site than the dashboard
            identities.person["groups"] = ["authors"]
            provider = Provider(settings(identities.issuer, client=CLIENT, secret=SECRET), world.clock)
            guard, extras = replace(OPEN, has_logins=True), Extras(provider=provider)
            async with (
                served(world, guard=guard, extras=extras, tenant="acme", role=Role.ADMIN) as browser,
                tab(chromium, browser, allowed=["401"]) as page,
            ):
                address = f"http://{browser.host}:{browser.port}{CALLBACK}"
                provider.settings = replace(provider.settings, redirect_url=address)
                await page.open()
                await page.page.get_by_role("link", name="Log in with your account").click()
                await page.see("web-globex")
                await page.see("read-only")
                assert await page.page.get_by_text("web-acme").count() == 0
                cookies = {each["name"]: each for each in await page.page.context.cookies()}
                session = cookies["nstance-session"]
                assert (session["httpOnly"], session["sameSite"], list(cookies)) == (
                    True,
                    "Strict",
                    ["nstance-session"],
                )
                await page.page.get_by_role("button", name="Log out").click()
                await page.page.get_by_role("link", name="Log in with your account").wait_for()
