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
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Instance, State
from nstance.server.cache import disk, thread
from nstance.server.cache.cache import Cache, Event
from nstance.tasks.backoff import Backoff

CLOCK = clock.SystemClock()
SECONDS = 60.0
A, B = InstanceId("knc-01jw51srryegh9snf9cmeh3k4q"), InstanceId("knc-01jw51srryegh9snf9cmeh3k5r")
WEB = GroupKey(DEFAULT_TENANT, GroupName("web"))
IDS = itertools.count(1)


def opened(path: Path, *, cluster: str = "demo", shard: str = "zone-a") -> Cache:
    return Cache.open(path, cluster=cluster, shard=shard, clock=CLOCK)


@contextlib.asynccontextmanager
async def cached(path: Path, **more: str) -> AsyncIterator[Cache]:
    cache = opened(path, **more)
    try:
        yield cache
    finally:
        await cache.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db" / "nstance.db"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "DISK_RETRY", Backoff(0.05, 0.1))
    monkeypatch.setattr(disk, "LOCK_SECONDS", 0.05)


def instance(id: InstanceId = A, state: State = State.RUNNING, tenant: TenantId = DEFAULT_TENANT) -> Instance:
    return Instance(id=id, tenant=tenant, group=GroupName("web"), state=state, created=5.0, vars={"a": "ü"})


def happened(id: int, message: str, **more: Any) -> Event:
    fields = {"tenant": DEFAULT_TENANT, "group": "web", "instance": A, "code": "scale-up", "trouble": False}
    return Event(id=id, time=5.0, message=message, **fields | more)


def event(cache: Cache, message: str, **more: Any) -> None:
    """One more, behind all others."""
    id = next(IDS)
    cache.put_events(id, lambda: [happened(id, message, **more)], count=1)


async def filled(path: Path) -> None:
    """A sound cache with one key and some pages of events in it."""
    async with cached(path) as cache:
        cache.put_public_keys(A, {"kubelet.pub": "pem"})
        for _ in range(20):
            event(cache, "before" * 500)
        assert await cache.sync(config_hash="c", group_hashes={WEB: "w"}, instances=[instance()])


CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from nstance import clock
from nstance.model.ids import InstanceId, TenantId
from nstance.server.cache import thread as cache_thread
from nstance.server.cache.cache import Cache, Event

def tell(cache, id, message):
    fields = dict(tenant=TenantId("default"), group="", instance="", code="c", trouble=False)
    cache.put_events(id, lambda: [Event(id=id, time=5.0, message=message, **fields)], count=1)

async def main():
    cache = Cache.open(sys.argv[1], cluster="demo", shard="zone-a", clock=clock.SystemClock())
    A = InstanceId("knc-01jw51srryegh9snf9cmeh3k4q")
    {body}

asyncio.run(main())
"""


def run_child(path: Path, body: str, *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    program = CHILD.replace("{body}", body)
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=timeout, check=False
    )
