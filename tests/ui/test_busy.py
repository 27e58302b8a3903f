"""5,000 instances and fifty events a second: nothing is missing, nothing throws, and the page stays small."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from bench.looking import SEEN, TAKE, WATCH_FRAMES, WATCH_ROWS
from bench.rows import spread

from component.http_world import OPEN, serving, shard_clients
from component.whole_server import SECONDS, SHARD, World, config
from support.eventually import eventually
from ui.browsing import tab
from ui.busy_shard import BusyShard, Happenings

GROUPS, SIZE = 100, 50
EVENTS_PER_SECOND = 50.0
LOOKING_SECONDS = float(os.environ.get("NSTANCE_UI_SECONDS") or 10)
MAX_HEAP_BYTES = 150e6


@pytest.mark.timeout(LOOKING_SECONDS + 300)
async def test_thousands_of_instances_and_many_events(tmp_path: Path, chromium: Any) -> None:
    async with World(tmp_path, config()) as world:
        await world.start()
        [real] = await shard_clients(world)
        busy = BusyShard(SHARD, real._addresses, identity=real.identity, timeout=SECONDS, clock=world.clock)
        real.close()
        busy.happenings = Happenings(world.clock, world.rng, groups=GROUPS, size=SIZE)
        # Two windows: what is behind another one is drawn once a second.
        async with serving(world, [busy], guard=OPEN) as browser, tab(chromium, browser) as window:
            fleet = window.page
            await window.open("fleet")
            await fleet.wait_for_selector(".tile canvas")
            assert await fleet.evaluate("() => document.querySelectorAll('.tile').length") == GROUPS
            async with tab(chromium, browser) as page:
                work = asyncio.create_task(busy.happenings.run(EVENTS_PER_SECOND))
                try:
                    await page.open("events")
                    await page.see("happening")
                    first = busy.happenings.newest  # what was before, pages read as they need it
                    await page.page.evaluate(WATCH_ROWS)
                    await fleet.evaluate(WATCH_FRAMES)
                    await asyncio.sleep(LOOKING_SECONDS)  # this is how long somebody looks
                finally:
                    work.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await work
                newest = busy.happenings.newest
                await page.see(f"happening {newest}")
                kept = {event.id for event in busy.happenings.events if event.id > max(first, newest - 1000)}
                for each in (fleet, page.page):

                    async def has_all(shown: Any = each) -> bool:
                        seen = await shown.evaluate(SEEN)
                        return len(set(seen)) == len(seen) and kept <= set(seen)

                    await eventually(has_all)
                heaps = [await each.evaluate("() => performance.memory.usedJSHeapSize") for each in (fleet, page.page)]
                delays, frames = await page.page.evaluate(TAKE, "delays"), await fleet.evaluate(TAKE, "frames_ms")
                print(
                    f"{newest} events, drawn {spread(delays, 'ms', 0)}; frames {spread(frames, 'ms', 0)}; heaps {heaps}"
                )
                assert max(heaps) < MAX_HEAP_BYTES
