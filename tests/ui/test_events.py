"""The page of events: nothing is missing in it, however much happens, and a pause holds what it shows."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from component.http_world import served
from component.whole_server import World, config
from support.eventually import eventually
from ui.browsing import SECONDS, Tab, tab

SHARDS = ("zone-a", "zone-b")
FIRST_IDS = {"zone-a": 1_000_000, "zone-b": 1}  # IDs of two shards have nothing to do with each other
# The number of every row, from the top to the bottom of the list.
ROWS = """async () => {
  const box = document.querySelector(".rows");
  const found = new Set();
  for (let top = 0; top < box.scrollHeight; top += 400) {
    box.scrollTop = top;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    for (const text of document.querySelectorAll(".rows .event-text")) found.add(Number(text.textContent.slice(6)));
  }
  box.scrollTop = 0;
  return [...found].sort((a, b) => a - b);
}"""
PUSH = """async ([shards, events]) => {
  const { store } = await import("/dashboard/store.js");
  store.receive({ data: JSON.stringify({ shards, groups: [], instances: [], events }) }, false);
}"""

MISSED = """async (missed) => {
  const { store } = await import("/dashboard/store.js");
  store.source.dispatchEvent(new MessageEvent("missed", { data: JSON.stringify(missed) }));
}"""


def shard(name: str) -> dict[str, Any]:
    return {"shard": name, "reachable": True, "tenant": "default", "control_plane": None}


def event(number: int, shard: str) -> dict[str, Any]:
    return {
        "id": FIRST_IDS[shard] + number,
        "shard": shard,
        "time": f"2026-01-31T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000Z",
        "tenant": "default",
        "group": "web",
        "instance_id": "",
        "reason": "created",
        "message": f"event {number}",
        "trouble": False,
    }


class History:
    """What two shards remember, in turn."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, count: int) -> list[dict[str, Any]]:
        first = len(self.events)
        new = [event(number, SHARDS[number % 2]) for number in range(first, first + count)]
        self.events += new
        return new

    async def watch(self, route: Any) -> None:
        snapshot = {
            "shards": [shard(name) for name in SHARDS],
            "groups": [],
            "instances": [],
            "events": self.events[-200:],
            "alarms": [],
        }
        body = f"retry: 3600000\nevent: snapshot\ndata: {json.dumps(snapshot)}\n\n"
        await route.fulfill(status=200, content_type="text/event-stream", body=body)

    async def read(self, route: Any) -> None:
        limit = int(parse_qs(urlsplit(route.request.url).query)["limit"][0])
        await route.fulfill(json={"events": self.events[-limit:]})


async def opened(page: Tab, history: History) -> None:
    await page.page.route("**/v1/watch", history.watch)
    await page.page.route("**/v1/events?*", history.read)
    await page.open("events")
    await page.see(f"event {len(history.events) - 1}")


async def has_no_hole(page: Tab, end: int, *, least: int) -> bool:
    numbers = await page.page.evaluate(ROWS)
    return bool(numbers == list(range(numbers[0], end)) and len(numbers) >= least)


async def test_no_event_is_missing_after_thousands(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config()) as world:
        await world.start()
        async with served(world) as browser, tab(chromium, browser) as page:
            history = History()
            history.add(1500)
            await opened(page, history)
            of_another_day = re.compile(r"^\d\d-\d\d \d\d:\d\d:\d\d$")
            await page.page.locator("time", has_text=of_another_day).first.wait_for(timeout=SECONDS)
            for _ in range(10):
                await page.page.evaluate(PUSH, [[], history.add(300)])
            await page.see("event 4499")
            await eventually(lambda: has_no_hole(page, 4500, least=2000))


async def test_no_event_is_missing_after_a_reconnect_that_brought_only_some(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config()) as world:
        await world.start()
        async with served(world) as browser, tab(chromium, browser) as page:
            history = History()
            history.add(1500)
            await opened(page, history)
            missed = history.add(3000)[:1000]  # while it was not connected
            await page.page.evaluate(MISSED, {"events": missed, "incomplete": ["zone-a", "zone-b"]})
            await page.page.evaluate(PUSH, [[], history.events[-200:]])
            await page.see("event 4499")
            await eventually(lambda: has_no_hole(page, 4500, least=1000))


async def test_a_pause_holds_the_events_of_all_shards(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config()) as world:
        await world.start()
        async with served(world) as browser, tab(chromium, browser) as page:
            history = History()
            history.add(10)
            await opened(page, history)
            await page.page.evaluate(PUSH, [[], history.add(4)])
            await page.see("event 13")
            await page.page.get_by_role("button", name="Pause").click()
            await page.page.evaluate(PUSH, [[shard("zone-c")], history.add(4)])
            await page.page.locator("option", has_text="zone-c").wait_for(state="attached")
            assert await page.page.evaluate(ROWS) == list(range(14))
            await page.page.get_by_role("button", name="Follow").click()
            await page.see("event 17")
            assert await page.page.evaluate(ROWS) == list(range(18))
