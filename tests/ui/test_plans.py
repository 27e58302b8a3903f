"""Between the plan and the act: other texts, other people, dead leaders, ended sessions. And pages of what is not known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from component.http_world import NOBODY, OPEN, get_json, served
from component.whole_server import SHARD, World, config, states
from nstance.admin import tokens
from nstance.admin.tokens import TokenFile
from nstance.clock import SystemRng
from nstance.model.ids import TenantId
from nstance.model.roles import Role
from support.eventually import eventually
from ui.browsing import insist, tab

GROUPS = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}


async def test_only_what_was_planned_is_done(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        async with served(world, guard=OPEN) as browser, tab(chromium, browser, allowed=["400", "412"]) as page:

            async def size() -> int:
                return int((await get_json(browser, "/v1/groups/web"))["groups"][0]["size"])

            await page.open(f"group/{SHARD}/web")
            await page.page.get_by_role("button", name="Scale…").click()
            field = page.page.get_by_label("Number of instances")
            act = page.page.get_by_role("button", name="Scale", exact=True)
            await field.fill("3")
            await page.page.keyboard.press("Enter")
            await page.see("a new instance")
            assert await act.is_enabled()
            await field.fill("50")  # the plan on the screen is that of 3
            assert await act.is_disabled()
            assert await page.page.locator("dialog .plan").count() == 0
            await field.fill("")  # no number is not the number 0
            await page.page.keyboard.press("Enter")
            await page.see("size: expected")
            assert await act.is_disabled()

            # Somebody else is faster: their change is seen before anything is done over it.
            await field.fill("1")
            await page.page.keyboard.press("Enter")
            await page.see("scaling down")
            await insist(browser, "POST", "/v1/groups/web/scale", {"size": 4})
            await act.click()
            await page.see("was changed in the meantime")
            assert await size() == 4
            assert await act.is_disabled()
            await eventually(lambda: len(states(world, "web")) >= 4)
            await page.page.wait_for_function("() => document.querySelector('.total-value').textContent === '4'")
            await page.page.get_by_role("button", name="Try again").click()
            await page.see("3 instances")
            await act.click()
            await page.page.wait_for_selector("dialog", state="detached")
            assert await size() == 1


async def test_the_leader_dies_between_the_plan_and_the_act(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start("a")
        await world.start("b", lead=False)
        await eventually(lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values()) == 2)
        async with served(world, guard=OPEN) as browser, tab(chromium, browser, allowed=["50", "412"]) as page:
            await page.open(f"group/{SHARD}/web")
            await page.page.get_by_role("button", name="Pause…").click()
            await page.see("No instance is touched")
            await world.servers["a"].crash()
            act = page.page.get_by_role("button", name="Pause", exact=True)

            async def is_done() -> bool:
                if await page.page.get_by_role("dialog").count() == 0:
                    return True
                if await act.is_enabled():
                    await act.click()
                again = page.page.get_by_role("button", name="Try again")
                if await again.count():
                    await again.click()
                return False

            await eventually(is_done, interval=0.1)
            assert world.leader is world.servers["b"]
            assert (await get_json(browser, "/v1/groups/web"))["groups"][0]["paused"]


async def test_a_viewer_sees_plans_and_an_ended_session_logs_in_again(tmp_path: Path, chromium: Any) -> None:
    path = tmp_path / "tokens.json"
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        now, rng = world.clock.wall(), SystemRng()
        made = {
            role: tokens.create(role.value, role, TenantId("default"), now=now, life=None, rng=rng) for role in Role
        }
        tokens.store(path, {token.id: token for _, token in made.values()})
        guard = replace(OPEN, tokens=TokenFile(path, world.clock))
        async with served(world, guard=guard) as browser, tab(chromium, browser, allowed=["401", "INCOMPLETE"]) as page:

            async def log_in(role: Role) -> None:
                await page.page.get_by_label("Token").fill(made[role][0])
                await page.page.keyboard.press("Enter")

            await page.open()
            await log_in(Role.VIEWER)
            await page.see("read-only")
            await page.open(f"group/{SHARD}/web")
            await page.page.get_by_role("button", name="Pause…").click()
            await page.see("Read-only: your role is viewer")
            assert await page.page.get_by_role("button", name="Pause", exact=True).is_disabled()
            await page.page.keyboard.press("Escape")
            await page.page.get_by_role("button", name="Log out").click()

            await log_in(Role.OPERATOR)
            await page.page.get_by_role("button", name="Pause…").click()
            await page.see("No instance is touched")
            tokens.store(path, {})  # revoked between the plan and the act
            await eventually(lambda: guard.tokens is not None and guard.tokens.get(made[Role.OPERATOR][1].id) is None)
            await page.page.get_by_role("button", name="Pause", exact=True).click()
            await page.page.get_by_label("Token").wait_for()
        assert not world.leader.active_config.configuration.dynamic.groups


async def test_a_shard_that_does_not_answer_is_not_an_empty_one(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        await eventually(lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values()) == 2)
        id = next(iter(states(world, "web")))
        async with (
            served(world, guard=NOBODY, dead=True) as browser,
            tab(chromium, browser, width=400, allowed=["503", "404"]) as page,
        ):
            await page.open("group/dead/web")
            await page.see("Nothing is known of the shard dead yet")
            await page.open("group/%E0%A4%A")  # no UTF-8
            await page.see("There is no group")
            await page.open("nonsense")
            await page.see("There is no page nonsense")
            await page.open(f"group/{SHARD}/web")
            await page.see("scaling up")
            await world.servers["a"].crash()
            await page.see("shown as of")
            await page.open(f"instance/{SHARD}/{id}")
            await page.see("shown as of")
            assert await page.page.locator("h1").inner_text() == id
            await page.open("control-plane")
            await page.see("shown as of")


async def test_a_busy_server_leaves_what_is_shown(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        async with served(world, guard=NOBODY) as browser, tab(chromium, browser, allowed=["429"]) as page:
            refused = 0

            async def refuse(route: Any) -> None:
                nonlocal refused
                refused += 1
                await route.fulfill(status=429, content_type="application/problem+json", body="{}")

            await page.open()
            await page.page.wait_for_selector(".tile canvas")
            for path in ("**/v1/watch", "**/v1/session"):
                await page.page.route(path, refuse)
            await page.page.evaluate("async () => (await import('/dashboard/store.js')).store.open()")
            await eventually(lambda: refused >= 3)
            await page.see("reconnecting")
            assert await page.page.locator(".tile canvas").count() == 1
            await page.page.unroute_all()
            await page.see("live")
