"""`make soak-ui`: Chromium looks at 5,000 instances for ten minutes while fifty events a second happen.

VMs end, and the shard replaces them: each gives events of its whole life, and agents that register over TLS. One page shows
the fleet, another one the events. Exits with 1 if a page logs a problem, lacks an event, or takes too much memory.
"""

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvloop

from bench import fleet
from bench.churn import Churn, become_ready
from bench.dashboard import dashboard, processor_seconds
from bench.fleet_server import resident
from bench.rows import percentile, spread

MB = 1e6
GROUPS, SIZE = 100, 50
SECONDS = 600.0
EVENTS_PER_SECOND = 50.0
REPORT_SECONDS = 60.0
RETENTION_SECONDS = 60.0
SETTLE_SECONDS = 5.0
TICK_SECONDS = 0.05
MAX_HEAP_MB, MAX_SERVE_MB = 150.0, 300.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# How late each event is drawn: from its time to the frame after the row appeared. And how long frames take.
WATCH_ROWS = """() => {
  window.delays = [];
  window.drawn = 0;
  const seen = new Set();
  const read = (isFirst) => {
    const fresh = [];
    for (const row of document.querySelectorAll(".rows .event")) {
      const key = row.textContent;
      if (seen.has(key)) continue;
      seen.add(key);
      fresh.push(Date.parse(row.querySelector("time").dateTime));
    }
    if (!isFirst && fresh.length) requestAnimationFrame(() => {
      for (const at of fresh) window.delays.push(Date.now() - at);
      window.drawn += fresh.length;
    });
    if (seen.size > 20000) seen.clear();
  };
  read(true);
  const what = { childList: true, subtree: true, characterData: true };
  new MutationObserver(() => read(false)).observe(document.querySelector("main"), what);
}"""
WATCH_FRAMES = """() => {
  window.frames_ms = [];
  let before = performance.now();
  const frame = (now) => {
    window.frames_ms.push(now - before);
    before = now;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
TAKE = """(name) => { const found = window[name]; window[name] = []; return found; }"""
SEEN = "async () => (await import('/dashboard/store.js')).store.events.map((event) => event.id)"


@dataclass
class Page:
    page: Any
    devtools: Any
    problems: list[str] = field(default_factory=list)

    async def take(self, name: str) -> list[float]:
        found: list[float] = await self.page.evaluate(TAKE, name)
        return found

    async def count(self) -> int:
        """Events that were drawn so far."""
        found: int = await self.page.evaluate("() => window.drawn")
        return found

    async def heap_mb(self) -> float:
        """In use after a garbage collection."""
        await self.devtools.send("HeapProfiler.collectGarbage")
        used: float = (await self.devtools.send("Runtime.getHeapUsage"))["usedSize"]
        return used / MB


@contextlib.asynccontextmanager
async def pages(url: str, *wheres: str) -> AsyncIterator[list[Page]]:
    from playwright.async_api import async_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise RuntimeError(f"no browser: install one of {', '.join(BROWSERS)}")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        found = []
        for where in wheres:
            context = await browser.new_context(viewport={"width": 1440, "height": 900})
            opened = await context.new_page()
            page = Page(opened, await context.new_cdp_session(opened))
            _note_problems(page)
            await opened.goto(f"{url}/#/{where}")
            await opened.wait_for_selector(".tile canvas, .rows .event")
            found.append(page)
        yield found
        await browser.close()


def _note_problems(page: Page) -> None:
    def on_console(message: Any) -> None:
        if message.type in ("error", "warning"):
            page.problems.append(message.text)

    page.page.on("console", on_console)
    page.page.on("pageerror", lambda error: page.problems.append(f"thrown: {error}"))
    page.page.on("crash", lambda _: page.problems.append("crashed"))


class Replacing:
    """VMs that end at a steady rate: as many as give so many events."""

    def __init__(self, server: fleet.Server) -> None:
        self._server = server
        self._churn = Churn(server)
        self._events_per_vm = 5.0

    async def run(self, count: Callable[[], Awaitable[int]]) -> None:
        """Until it is cancelled. `count`: how many events there were."""
        async with asyncio.TaskGroup() as tasks:
            began, ended = time.monotonic(), 0
            tasks.create_task(self._register())
            while True:
                await asyncio.sleep(TICK_SECONDS)
                if ended * self._events_per_vm < (time.monotonic() - began) * EVENTS_PER_SECOND:
                    agent = self._server.agents.pop(0)
                    await self._server.ask("stop", id=agent.id)
                    agent.die(reset=False)
                    ended += 1
                    if ended % 100 == 0:
                        self._events_per_vm = max(1.0, await count() / ended)

    async def _register(self) -> None:
        while True:
            await self._churn.register((await self._server.ask("booted"))["booted"])
            await asyncio.sleep(TICK_SECONDS)


async def look(seconds: float) -> list[str]:
    """What was missed."""
    async with fleet.serving(fleet.Setup(groups=GROUPS, size=SIZE, files=True, retention=RETENTION_SECONDS)) as server:
        await server.connect_all()
        await asyncio.gather(*map(become_ready, server.agents))
        await server.wait_idle()
        async with dashboard(server) as (process, url), pages(url, "fleet", "events") as (shown, listed):
            return await _look(server, url, process.pid, shown, listed, seconds)


async def _look(server: fleet.Server, url: str, pid: int, shown: Page, listed: Page, seconds: float) -> list[str]:
    await shown.page.evaluate(WATCH_FRAMES)
    await listed.page.evaluate(WATCH_ROWS)
    delays: list[float] = []
    frames: list[float] = []
    began, used = time.monotonic(), processor_seconds(pid)
    async with aiohttp.ClientSession() as session:
        work = asyncio.create_task(Replacing(server).run(listed.count))
        heap, serve = 0.0, 0.0
        while (passed := time.monotonic() - began) < seconds and not work.done():
            await asyncio.sleep(min(REPORT_SECONDS, seconds - passed))
            late, gaps = await listed.take("delays"), await shown.take("frames_ms")
            delays += late
            frames += gaps
            heaps = [await shown.heap_mb(), await listed.heap_mb()]
            heap, serve = max(heap, *heaps), max(serve, resident(pid) / MB)
            events = await listed.count()
            print(
                f"{time.monotonic() - began:4.0f} s: {events:6,} events; drawn {spread(late or [0.0], 'ms', 0)}; "
                f"frame p95 {percentile(gaps or [0.0], 0.95):.0f} max {max(gaps, default=0.0):.0f} ms; "
                f"heap {heaps[0]:.1f} and {heaps[1]:.1f} MB; serve {resident(pid) / MB:.0f} MB, "
                f"{100 * (processor_seconds(pid) - used) / (time.monotonic() - began):.0f} % of a core",
                flush=True,
            )
        if work.done():
            work.result()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.sleep(SETTLE_SECONDS)
        async with session.get(f"{url}/v1/events", params={"limit": "1000"}) as answer:
            kept = [event["id"] for event in (await answer.json())["events"]]
    print(f"all: drawn {spread(delays or [0.0], 'ms', 0)}; frames {spread(frames or [0.0], 'ms', 0)}")
    problems = [*shown.problems, *listed.problems]
    for page in (shown, listed):
        seen = await page.page.evaluate(SEEN)
        if missing := set(kept) - set(seen):
            problems.append(f"{len(missing)} of the last {len(kept)} events are missing")
        if len(set(seen)) != len(seen):
            problems.append("an event is there twice")
    if heap > MAX_HEAP_MB:
        problems.append(f"a page needs {heap:.0f} MB")
    if serve > MAX_SERVE_MB:
        problems.append(f"serve needs {serve:.0f} MB")
    return problems


def main() -> None:
    problems = uvloop.run(look(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    main()
