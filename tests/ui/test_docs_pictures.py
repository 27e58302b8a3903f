"""The pictures of docs/dashboard.md: `make test-ui SCREENSHOTS=docs/images` takes them again."""

import os
from pathlib import Path
from typing import Any

import pytest

from component.http_world import OPEN, served
from component.whole_server import SHARD, World, config, states
from nstance.admin.http.routes import Extras
from support.eventually import eventually
from ui.browsing import Tab, insist, tab
from ui.test_pages import bucket

FOLDER = os.environ.get("NSTANCE_UI_SCREENSHOTS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="no folder for pictures: SCREENSHOTS=docs/images")
SIZES = {"api": 6, "batch": 8, "web": 12, "worker": 24}
GROUPS = {"default": {name: {"template": "web", "size": size, "drain_timeout": "0"} for name, size in SIZES.items()}}
PRICES = {"currency": "USD", "hourly": {"small": 0.0168, "large": 0.0672}}
HEIGHTS = {"fleet": 720, "fleet-narrow": 900, "group": 1100, "instance": 880, "events": 720, "control-plane": 640}


async def take(page: Tab, name: str, *, height: int | None = None) -> None:
    width = page.page.viewport_size["width"]
    await page.page.set_viewport_size({"width": width, "height": height or HEIGHTS[name]})
    await page.page.wait_for_function("() => !document.body.innerText.includes('Reading…')")
    await page.page.screenshot(path=f"{FOLDER}/dashboard-{name}.png")


async def test_pictures(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS, prices=PRICES)) as world:
        await world.start("a")
        await world.start("b", lead=False)
        ready = lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values())  # noqa: E731
        await eventually(lambda: ready() == sum(SIZES.values()))
        extras = Extras(storage=bucket(world, tmp_path))
        async with (
            served(world, guard=OPEN, extras=extras) as browser,
            tab(chromium, browser, width=1280) as light,
            tab(chromium, browser, width=1280, scheme="dark") as dark,
            tab(chromium, browser, width=400, scheme="dark") as phone,
        ):
            for page in (light, phone):
                await page.open()
                await page.page.wait_for_selector(".tile canvas")
            for name in ("worker", "web", "batch"):
                await insist(browser, "PATCH", f"/v1/groups/{name}", {"instance_type": "large"})
            await light.see("rollout rolling")
            await take(light, "fleet")
            await take(phone, "fleet-narrow")
            await light.open("events")
            await light.see("shown")
            await take(light, "events")
            await light.open("control-plane")
            await light.see("Standbys")
            await take(light, "control-plane")
            await dark.open(f"group/{SHARD}/web")
            await dark.see("Why instances changed")
            await dark.see("as now")
            await take(dark, "group")
            id = next(id for id, state in states(world, "api").items() if state == "running")
            await light.open(f"instance/{SHARD}/{id}")
            await light.see("The current file set is installed")
            await take(light, "instance")
            await light.open(f"group/{SHARD}/api")
            await light.page.get_by_role("button", name="Scale…").click()
            await light.page.get_by_label("Number of instances").fill("9")
            await light.page.get_by_role("button", name="Show plan").click()
            await light.see("3 instances")
            await take(light, "plan", height=720)
            await light.page.keyboard.press("Escape")
            await light.open("forecast")
            await light.page.get_by_label("Hours of virtual time").fill("0.5")
            await light.page.get_by_role("button", name="Run").click()
            await light.page.wait_for_selector(".chart canvas", timeout=180_000)
            await light.see("requests to object storage cost about")
            await take(light, "forecast", height=800)
