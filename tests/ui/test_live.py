"""The dashboard while things happen: changes appear, a leader dies, and thousands of instances stay smooth."""

import json
from pathlib import Path
from typing import Any

from component.http_world import OPEN, get_json, served
from component.whole_server import SHARD, World, config, states
from support.eventually import eventually
from ui.browsing import insist, tab

GROUPS = {"default": {"web": {"template": "web", "size": 3, "drain_timeout": "0"}}}
SEEN = "async () => (await import('/dashboard/store.js')).store.events.map((event) => event.id)"


async def test_a_leader_is_killed_while_somebody_looks(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start("a")
        await world.start("b", lead=False)
        await eventually(lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values()) == 3)
        async with served(world, guard=OPEN) as browser, tab(chromium, browser) as page:
            await page.open()
            await page.see("standby b")
            await world.servers["a"].crash()
            await page.page.wait_for_function(
                "() => document.querySelector('.shard-leader strong')?.textContent === 'b'"
            )
            await eventually(lambda: world.servers["b"].lead is not None)
            await page.open("events")
            await insist(browser, "POST", "/v1/groups/web/scale", {"size": 4})
            await page.see("3 → 4")
            await eventually(lambda: [*states(world, "web").values()].count("running") == 4)
            await page.open(f"group/{SHARD}/web")
            await page.page.wait_for_function(
                "() => document.querySelector('.total.good .total-value')?.textContent === '4'"
            )
            await page.open("control-plane")
            await page.see("epoch 2")
            listed = [each["id"] for each in (await get_json(browser, "/v1/events", limit="1000"))["events"]]

            async def same() -> bool:
                seen = await page.page.evaluate(SEEN)
                return len(set(seen)) == len(seen) and set(listed) <= set(seen)

            await eventually(same)


BLANK = """() => [...document.querySelectorAll(".tile canvas")].filter((canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return !pixels.some((value) => value);
}).length"""


async def test_a_rotation_while_somebody_looks(tmp_path: Path, chromium: Any) -> None:
    """Instances come and go between two drawings: no cell is lost, and nothing throws."""
    settings = config(groups={"default": {"web": {"template": "web", "size": 8, "drain_timeout": "0"}}})
    async with World(tmp_path, settings) as world:
        await world.start()
        await eventually(lambda: sum(i.ready_at is not None for i in world.leader.shard.instances.values()) == 8)
        reads = ["willReadFrequently"]  # Chromium's advice to who reads pixels, which only this test does
        async with served(world, guard=OPEN) as browser, tab(chromium, browser, allowed=reads) as page:
            await page.open()
            await page.page.wait_for_selector(".tile canvas")
            await insist(browser, "PATCH", "/v1/groups/web", {"instance_type": "large"})
            await page.see("rollout rolling")
            progress = page.page.locator(".progress")
            assert await progress.get_attribute("aria-valuemax") == "8"  # also while there are nine
            blank = 0

            async def is_complete() -> bool:
                nonlocal blank
                blank += await page.page.evaluate(BLANK)
                rollout = (await get_json(browser, "/v1/groups/web"))["groups"][0]["rollout"]
                return bool(rollout["outcome"] == "complete")

            await eventually(is_complete, interval=0.05)
            assert blank == 0


def snapshot(count: int) -> dict[str, Any]:
    """What the server would send of so many instances."""
    group = {
        "shard": "zone-a",
        "tenant": "default",
        "template": "web",
        "blocked": [],
        "last_error": None,
        "paused": False,
        "rollout": None,
        "infra_hash": "sha256:" + "1" * 64,
        "not_ready": 0,
        "draining": 0,
        "on_demand": 0,
        "etag": "e",
    }
    names = ["web", "api", "worker", "batch", "cache"]
    each = count // len(names)
    groups = [{**group, "group": name, "size": each, "actual_size": each, "ready_size": each} for name in names]
    instances = [
        {
            "shard": "zone-a",
            "id": f"web-{name}{number:022d}",
            "group": name,
            "state": "running",
            "ready": True,
            "revision": "1" * 12,
            "created": 0,
        }
        for name in names
        for number in range(each)
    ]
    shard = {
        "shard": "zone-a",
        "reachable": True,
        "error": None,
        "tenant": "default",
        "control_plane": None,
        "config": None,
        "unknown_vms": 0,
    }
    return {"shards": [shard], "groups": groups, "instances": instances, "events": [], "alarms": []}


FRAMES = """async (seconds) => {
  const { store } = await import("/dashboard/store.js");
  const states = ["running", "draining", "starting"];
  const ids = [...store.instances.keys()];
  const gaps = [];
  let before = performance.now();
  const until = before + seconds * 1000;
  let number = 0;
  while (before < until) {
    const changed = [];
    for (let each = 0; each < 5; each += 1) {
      const instance = store.instances.get(ids[(number * 7919) % ids.length]);
      changed.push({ ...instance, state: states[number % 3], ready: number % 3 === 0 });
      number += 1;
    }
    store.receive({ data: JSON.stringify({ shards: [], groups: [], instances: changed, events: [] }) }, false);
    const now = await new Promise((done) => requestAnimationFrame(done));
    gaps.push(now - before);
    before = now;
  }
  gaps.sort((a, b) => a - b);
  const at = (part) => gaps[Math.floor(gaps.length * part)];
  return { frames: gaps.length, median: at(0.5), p95: at(0.95), heap: performance.memory?.usedJSHeapSize || 0 };
}"""


async def test_five_thousand_instances(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config()) as world:
        await world.start()
        async with served(world) as browser, tab(chromium, browser) as page:
            body = f"retry: 3600000\nevent: snapshot\ndata: {json.dumps(snapshot(5000))}\n\n"

            async def stream(route: Any) -> None:
                await route.fulfill(status=200, content_type="text/event-stream", body=body)

            await page.page.route("**/v1/watch", stream)
            await page.open()
            await page.page.wait_for_selector(".tile-wide canvas")
            paint = await page.page.evaluate(
                "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            assert paint < 1000
            frames = await page.page.evaluate(FRAMES, 3)
            print(f"first paint {paint:.0f} ms, {frames}")
            assert frames["p95"] < 100
            assert frames["heap"] < 150e6
            # Nothing but canvases for cells: the page has few elements, however many instances there are.
            assert await page.page.evaluate("() => document.querySelectorAll('*').length") < 400
