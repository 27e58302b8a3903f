"""Row 30: `nstance-admin serve` with 200 browsers: how late an event is, its memory and its processor time."""

import asyncio
import contextlib
import datetime
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from bench import fleet, ports
from bench.fleet_server import SHARD, TIMEOUT_SECONDS, resident
from bench.rows import Row, percentile, spread

MB = 1e6
GROUPS, SIZE = 500, 10
BROWSERS = 200
EVENTS = 100  # changes of a group, each with an event
PAUSE_SECONDS = 0.1
MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # a snapshot is one line


async def run() -> AsyncIterator[Row]:
    async with fleet.serving(fleet.Setup(groups=GROUPS, size=SIZE, files=True)) as server:
        await server.connect_all()
        await server.wait_idle()
        async with dashboard(server) as (process, url):
            delays, seconds, cpu = await _measure(url, process.pid)
            yield Row(
                number="30",
                what=f"event durable → at {BROWSERS} browsers, p99",
                value=percentile(delays, 0.99),
                unit="ms",
                goal=250.0,
                detail=f"{spread(delays, 'ms')}; from the time of its journal slot, which is before it is durable",
            )
            yield Row(
                number="30",
                what=f"memory of `serve`, {BROWSERS} browsers and {GROUPS * SIZE:,} instances",
                value=resident(process.pid) / MB,
                unit="MB",
                goal=300.0,
                detail=f"{100 * cpu / seconds:.0f} % of one core during {seconds:.0f} s",
            )


@contextlib.asynccontextmanager
async def dashboard(server: fleet.Server) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    folder, base = Path(server.settings["dir"]), server.settings["base"]
    identity = folder / "identity"
    storage = ("--storage-provider=file", f"--storage-bucket={server.settings['bucket']}", "--insecure-dev")
    registering = await _admin("cluster", "register-operator", *storage, f"--output-dir={identity}")
    if await registering.wait():
        raise RuntimeError("failed to register an operator")
    port = ports.free_base([0])
    process = await _admin(
        *("serve", "--allow-changes", f"--bind=127.0.0.1:{port}", f"--identity-dir={identity}"),
        *("--servers", f"{SHARD}=127.0.0.1:{base + 3}"),
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{url}/v1/shards") as answer:
                        if (await answer.json())["shards"][0]["reachable"]:
                            break
                await asyncio.sleep(0.05)
        yield process, url
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def _admin(*words: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NSTANCE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "nstance.admin",
        *words,
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def _measure(url: str, pid: int) -> tuple[list[float], float, float]:
    """How late each event was at each browser, in milliseconds; and the time and processor time that it took."""
    delays: list[float] = []
    ready = asyncio.Semaphore(0)
    arrived = asyncio.Semaphore(0)

    async def browse(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/v1/watch", headers={"Accept": "text/event-stream"}) as answer:
            kind = ""
            while line := await answer.content.readline(max_line_length=MAX_MESSAGE_BYTES):
                now = time.time()
                if line.startswith(b"event: "):
                    kind = line[7:].strip().decode()
                elif line.startswith(b"data: ") and kind == "snapshot":
                    ready.release()
                elif line.startswith(b"data: ") and b'"reason":"config"' in line:
                    for event in json.loads(line[6:])["events"]:
                        if event["reason"] == "config":
                            at = datetime.datetime.fromisoformat(event["time"]).timestamp()
                            delays.append(1000 * (now - at))
                            arrived.release()

    limits = aiohttp.TCPConnector(limit=0)
    timeouts = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=limits, timeout=timeouts) as session, asyncio.timeout(TIMEOUT_SECONDS):
        browsers = [asyncio.create_task(browse(session)) for _ in range(BROWSERS)]
        try:
            for _ in range(BROWSERS):
                await ready.acquire()
            began, used = time.monotonic(), processor_seconds(pid)
            async with session.get(f"{url}/v1/groups") as answer:
                name = (await answer.json())["groups"][0]["group"]
            for number in range(EVENTS):
                await _change(session, f"{url}/v1/groups/{name}", str(number))
                await asyncio.sleep(PAUSE_SECONDS)
            for _ in range(EVENTS * BROWSERS):
                await arrived.acquire()
            return delays, time.monotonic() - began, processor_seconds(pid) - used
        finally:
            for each in browsers:
                each.cancel()
            await asyncio.gather(*browsers, return_exceptions=True)


async def _change(session: aiohttp.ClientSession, url: str, value: str) -> None:
    """Again while the shard is unsure who leads, as on a busy machine, and while `serve` limits the rate: all browsers
    here have one address."""
    while True:
        async with session.patch(url, params={"shard": SHARD}, json={"vars": {"bench": value}}) as answer:
            if answer.status not in (429, 503):
                answer.raise_for_status()
                return
        await asyncio.sleep(PAUSE_SECONDS)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
