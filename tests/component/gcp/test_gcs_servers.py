"""Whole servers on Google's object storage, which takes one write per second and object."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from component.whole_server import SHARD, World, config
from nstance.objects.gcs import GcsStore
from support import gcs_server
from support.eventually import eventually
from support.gcp.storage import Buckets, Kept

LEASE = f"shard/{SHARD}/leader.json"
# As often as the store allows: without its limit these would be two renewals a second.
OFTEN = {"renewal": "0.5s", "urgent_renewal": "0.5s"}


class Bucket:
    """What a test does to the bucket, past the servers."""

    def __init__(self, google: Buckets) -> None:
        self.google = google
        self.opened: list[GcsStore] = []

    def tamper(self, key: str, body: bytes) -> None:
        self.google.objects["dev", key] = Kept(body, next(self.google._generations))

    def view(self, faults: object) -> GcsStore:
        self.opened.append(gcs_server.client(self.google.stand_in))
        return self.opened[-1]


@pytest.fixture
async def google() -> AsyncIterator[Buckets]:
    async with gcs_server.serving_gcs(write_gap=1.0) as buckets:
        yield buckets


async def test_a_leader_spaces_its_renewals_and_a_standby_takes_over(google: Buckets, tmp_path: Path) -> None:
    bucket = Bucket(google)
    beside: Any = SimpleNamespace(store=bucket)
    async with World(tmp_path, config(leader_election=OFTEN), beside=beside) as world:
        await world.start("a")
        await world.start("b", lead=False)
        refused = google.refused.count(LEASE)
        held = world.servers["a"].configured.elector.held
        assert held is not None
        first = held.sequence

        def renewed() -> bool:
            now = world.leader.configured.elector.held
            return now is not None and now.sequence >= first + 4

        await eventually(renewed)
        assert google.refused.count(LEASE) == refused  # no renewal came too soon
        await world.servers["a"].crash()
        await eventually(lambda: world.servers["b"].lead is not None)
        await world.start("a", lead=False)
        await world.servers["b"].stop()
        await eventually(lambda: world.servers["a"].lead is not None)
    for store in bucket.opened:
        await store.close()
