"""The alarms of the fleet page: each is seen while it lasts, in every width and scheme."""

import os
from pathlib import Path
from typing import Any

import pytest

from component.http_world import OPEN, served
from component.test_server_alarms import AlarmWorld, Cloud
from component.whole_server import config
from nstance.objects import errors as storage
from nstance.objects.memory import Fate
from support.eventually import eventually
from ui.browsing import CONTRAST, OVERFLOW, Tab, insist, tab

FOLDER = os.environ.get("NSTANCE_UI_SCREENSHOTS")
GROUPS = {"default": {"web": {"template": "web", "size": 6, "drain_timeout": "0"}}}
VIEWS = [(1440, "light"), (400, "dark")]


async def look(page: Tab, name: str, text: str) -> None:
    await page.see(text)
    assert await page.page.evaluate(CONTRAST) == []
    assert await page.page.evaluate(OVERFLOW) <= 0
    if FOLDER:
        await page.page.screenshot(path=f"{FOLDER}/{name}.png")


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
async def test_each_alarm_is_seen_while_it_lasts(tmp_path: Path, chromium: Any, width: int, scheme: str) -> None:
    settings = config(
        groups=GROUPS,
        garbage_collection={"interval": "200ms", "registration_timeout": "60s"},
        health={"suspect_after": "4s"},
    )
    async with AlarmWorld(tmp_path, settings) as world:
        cloud = world.cloud.behavior = Cloud()
        server = await world.start()
        await eventually(lambda: len(server.shard.instances) == 6)
        await eventually(lambda: all(each.seen and each.ready_at for each in server.shard.instances.values()))
        async with (
            served(world, guard=OPEN) as browser,
            tab(chromium, browser, width=width, scheme=scheme) as page,
        ):
            await page.open()
            await page.see("Nothing needs attention")

            async def over() -> None:
                await page.see("Nothing needs attention")

            view = f"{width}-{scheme}"
            cloud.forgets = True
            await look(page, f"mass-absence-{view}", "6 VMs are missing from one listing")
            cloud.forgets = False
            await over()
            cloud.is_away = True
            await look(page, f"provider-{view}", "the provider does not list the VMs")
            cloud.is_away = False
            await over()
            world.problem = "the disk of the host is full"
            await look(page, f"paused-vms-{view}", "6 VMs paused: the disk of the host is full")
            world.problem = ""
            await over()
            for agent in world.agents.values():
                agent.mute()
            await look(page, f"mass-silence-{view}", "agents are unresponsive at once")
            for agent in world.agents.values():
                agent.speak()
            await over()
            await insist(browser, "POST", "/v1/groups/web/pause")
            await look(page, f"paused-{view}", "paused: no instance is created")
            await insist(browser, "POST", "/v1/groups/web/resume")
            await over()
            left = 3

            def failing(verb: Any, key: str) -> Fate:
                nonlocal left
                left -= 1
                return Fate(error=storage.UnavailableError("503 Slow Down")) if left >= 0 else Fate()

            world.fate = failing
            await look(page, f"storage-{view}", "requests to object storage failed")
            cloud.is_dry = True
            await insist(browser, "POST", "/v1/groups/web/scale", {"size": 7})
            await look(page, f"blocked-{view}", "no small ones")
