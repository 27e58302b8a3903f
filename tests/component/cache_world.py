"""A cache on a real file, and what tests put into it."""

import contextlib
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nstance import clock
from nstance.model.ids import DEFAULT_TENANT, InstanceId
from nstance.server.cache.cache import Cache, Event
from nstance.server.cache.thread import LIMITS, Limits
from nstance.tasks.backoff import Backoff

CLOCK = clock.SystemClock()
SECONDS = 60.0
A, B = InstanceId("knc-01jw51srryegh9snf9cmeh3k4q"), InstanceId("knc-01jw51srryegh9snf9cmeh3k5r")
IDS = itertools.count(1)
SOON = Limits(disk_retry=Backoff(0.05, 0.1), lock_seconds=0.05)


def opened(path: Path, limits: Limits = LIMITS, *, shard: str = "zone-a") -> Cache:
    return Cache.open(path, cluster="demo", shard=shard, clock=CLOCK, limits=limits)


@contextlib.asynccontextmanager
async def cached(path: Path, limits: Limits = LIMITS, *, shard: str = "zone-a") -> AsyncIterator[Cache]:
    cache = opened(path, limits, shard=shard)
    try:
        yield cache
    finally:
        await cache.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db" / "nstance.db"


def make_event(id: int, message: str, **changes: Any) -> Event:
    fields = {"tenant": DEFAULT_TENANT, "group": "web", "instance": A, "code": "scale-up"}
    return Event(id=id, time=5.0, message=message, **fields | changes)


def put_event(cache: Cache, message: str, **changes: Any) -> None:
    """One more, behind all others."""
    id = next(IDS)
    cache.put_events(id, lambda: [make_event(id, message, **changes)], count=1)


async def images(cache: Cache) -> dict[str, str]:
    """All images, by lookup."""
    return dict(await cache._rows("SELECT lookup, image FROM images"))


async def filled(path: Path) -> None:
    """A sound cache with one image and some pages of events in it."""
    async with cached(path) as cache:
        cache.put_image("ubuntu", "ami-1")
        for _ in range(20):
            put_event(cache, "before" * 500)
        assert await cache.flush()


CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from nstance import clock
from nstance.model.ids import TenantId
from nstance.server.cache.cache import Cache, Event
from nstance.server.cache.thread import Limits
from nstance.tasks.backoff import Backoff
from nstance.server.cache.thread import LIMITS, Limits

def put_event(cache, id, message):
    fields = dict(tenant=TenantId("default"), group="", instance="", code="c")
    cache.put_events(id, lambda: [Event(id=id, time=5.0, message=message, **fields)], count=1)

async def images(cache):
    return dict(await cache._rows("SELECT lookup, image FROM images"))

async def main():
    limits = Limits(disk_retry=Backoff(0.05, 0.05))
    cache = Cache.open(sys.argv[1], cluster="demo", shard="zone-a", clock=clock.SystemClock(), limits=limits)
    {body}

asyncio.run(main())
"""


def run_child(path: Path, body: str, *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    program = CHILD.replace("{body}", body)
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=timeout, check=False
    )
