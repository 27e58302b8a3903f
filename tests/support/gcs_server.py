"""Google's object storage in the test's own process, on a free port."""

import contextlib
from collections.abc import AsyncIterator

from nstance.objects import gcs
from support.gcp.stand_in import StandIn, serving
from support.gcp.storage import Buckets


@contextlib.asynccontextmanager
async def serving_gcs(write_gap: float = 0.0) -> AsyncIterator[Buckets]:
    stand_in = StandIn()
    buckets = Buckets(stand_in, write_gap=write_gap)
    buckets.install()
    async with serving(stand_in):
        yield buckets
    assert not stand_in.violations


def client(stand_in: StandIn, endpoint: str = "", *, bucket: str = "dev", timeout: float = 30.0) -> gcs.GcsStore:
    return gcs.GcsStore(
        bucket, endpoint_url=endpoint or stand_in.url, timeout=timeout, environment=stand_in.environment()
    )
