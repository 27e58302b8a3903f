"""Every page in real Chromium: it works, fits, can be read, and can be reached with a keyboard."""

from pathlib import Path
from typing import Any

import pytest

from component.http_world import GUARDED, NOBODY, OPEN, TOKEN, get_json, served
from component.whole_server import SHARD, World, config, states
from nstance.admin.http.routes import Extras
from nstance.admin.options import KeyLocation, Target
from support.eventually import eventually
from ui.browsing import CONTRAST, OVERFLOW, SCHEMES, WIDTHS, Tab, insist, tab

GROUPS = {
    "default": {
        name: {"template": "web", "size": size, "drain_timeout": "0"}
        for name, size in (("api", 2), ("web", 4), ("worker", 9))
    }
}


async def all_ready(world: World) -> None:
    await eventually(lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values()) == 15)


# Words of two parts that stand side by side without a space.
GLUED = """() => [...document.querySelectorAll("main li > *, main p > *")].filter((each) => {
  const before = each.previousSibling;
  if (before?.nodeType !== Node.ELEMENT_NODE) return false;
  const [left, right] = [before, each].map((part) => part.getBoundingClientRect());
  const isBeside = Math.min(left.bottom, right.bottom) - Math.max(left.top, right.top) > 4;
  return left.width && right.width && isBeside && Math.abs(right.left - left.right) < 1;
}).map((each) => each.parentElement.innerText)"""


def bucket(world: World, directory: Path) -> Target:
    """What `serve` reads: the configuration of the shard, in files."""
    path = directory / "bucket" / "shard" / SHARD / "config.jsonc"
    path.parent.mkdir(parents=True)
    path.write_bytes(world.store.contents()[f"shard/{SHARD}/config.jsonc"])
    return Target(
        cluster=None,
        provider="file",
        bucket=str(directory / "bucket"),
        prefix="",
        cluster_prefix="cluster/",
        secrets="object-storage",
        secrets_prefix=None,
        key=KeyLocation(provider="env", source=""),
        old_keys=(),
        insecure_dev=False,
    )


async def settled(page: Tab, text: str) -> None:
    await page.see(text)
    await page.page.wait_for_function("() => !document.body.innerText.includes('Reading…')")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
async def test_every_page_fits_and_can_be_read(tmp_path: Path, chromium: Any, width: int, scheme: str) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start("a")
        await world.start("b", lead=False)
        await all_ready(world)
        id = next(iter(states(world, "web")))
        extras = Extras(storage=bucket(world, tmp_path))
        async with served(world, guard=OPEN, extras=extras) as browser:
            await insist(browser, "POST", "/v1/groups/api/pause")
            async with tab(chromium, browser, width=width, scheme=scheme) as page:
                for where, text in (
                    ("fleet", "paused: no instance"),
                    (f"group/{SHARD}/web", "Nothing to do"),
                    (f"instance/{SHARD}/{id}", "The current file set is installed"),
                    ("events", "shown"),
                    ("control-plane", "Standbys"),
                    ("forecast", "Play a scenario"),
                ):
                    await page.open(where)
                    await settled(page, text)
                    assert await page.page.evaluate(OVERFLOW) <= 0, where
                    assert await page.page.evaluate(CONTRAST) == [], where
                    assert await page.page.evaluate(GLUED) == [], where


async def test_without_groups_and_without_a_shard(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config()) as world:
        await world.start()
        async with served(world, dead=True) as browser, tab(chromium, browser, allowed=["404"]) as page:
            await page.open()
            await page.see("No groups yet")
            await page.see("the shard does not answer")
            await page.see("Nothing is known of this shard yet")
            await page.see("read-only")
            await page.open("group/zone-a/nothing")
            await page.see("There is no group nothing")
            await page.open("instance/zone-a/web-01jw51srryegh9snf9cmeh3k4q")
            await page.see("There is no instance web-01jw51srryegh9snf9cmeh3k4q")
            await page.open("forecast")
            await page.see("needs the configuration from the bucket")


FOCUS_WHEN_THE_DIALOG_GOES = """() => new MutationObserver((_, observer) => {
    if (document.querySelector("dialog")) return;
    window.focused = document.activeElement;
    observer.disconnect();
}).observe(document.body, { childList: true, subtree: true })"""


async def test_the_keyboard_is_enough(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        await all_ready(world)
        async with served(world, guard=OPEN) as browser, tab(chromium, browser) as page:
            await page.open()
            keys = page.page.keyboard
            await page.page.wait_for_selector(".tile canvas")
            reached: list[str] = []
            for _ in range(40):
                await keys.press("Tab")
                reached.append(
                    await page.page.evaluate(
                        "() => document.activeElement.textContent || document.activeElement.getAttribute('aria-label')"
                    )
                )
                if "Arrow keys" in (reached[-1] or "") or await page.page.evaluate(
                    "() => document.activeElement.tagName === 'CANVAS'"
                ):
                    break
            assert {"Skip to the content", "Events", "Control plane", "Forecast", "api"} <= set(reached)
            for key in ("ArrowRight", "ArrowRight", "Enter"):
                await keys.press(key)
            await page.see("Drain and delete…")
            replace = page.page.get_by_role("button", name="Replace…")
            await replace.focus()
            await keys.press("Enter")
            await page.see("A replacement is created first")
            assert await page.page.evaluate("() => document.querySelector('dialog').contains(document.activeElement)")
            await page.page.evaluate(FOCUS_WHEN_THE_DIALOG_GOES)
            await keys.press("Escape")
            await page.page.wait_for_selector("dialog", state="detached")
            assert await replace.evaluate("(button) => button === window.focused")


async def test_logging_in_and_out(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        async with served(world, guard=GUARDED) as browser, tab(chromium, browser, allowed=["401"]) as page:
            await page.open()
            await page.page.get_by_label("Token").fill("not the token")
            await page.page.get_by_role("button", name="Log in").click()
            await page.see("this is not the token of this server")
            await page.page.get_by_label("Token").fill(TOKEN)
            await page.page.keyboard.press("Enter")
            await page.see("worker")
            cookies = await page.page.context.cookies()
            assert [(each["httpOnly"], each["sameSite"]) for each in cookies] == [(True, "Strict")]
            await page.page.get_by_role("button", name="Log out").click()
            await page.page.get_by_label("Token").wait_for()
            assert await page.page.context.cookies() == []


async def test_a_forecast_is_played_and_drawn(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        extras = Extras(storage=bucket(world, tmp_path))
        async with served(world, extras=extras) as browser, tab(chromium, browser) as page:
            await page.open("forecast")
            await page.page.get_by_label("Hours of virtual time").fill("0.5")
            await page.page.get_by_role("button", name="Run").click()
            await page.page.wait_for_selector(".chart canvas", timeout=180_000)
            await page.see("requests to object storage cost about")
            [forecast] = (await get_json(browser, "/v1/forecasts"))["forecasts"]
            assert (forecast["state"], forecast["agents"]) == ("done", 15)


async def test_a_read_only_dashboard_shows_plans_and_cannot_act(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        async with served(world, guard=NOBODY) as browser, tab(chromium, browser) as page:
            await page.open(f"group/{SHARD}/web")
            await page.page.get_by_role("button", name="Scale…").click()
            await page.page.get_by_label("Number of instances").fill("6")
            await page.page.get_by_role("button", name="Show plan").click()
            await page.see("2 instances")
            await page.see("Read-only: start")
            assert await page.page.get_by_role("button", name="Scale", exact=True).is_disabled()
