"""Row 14: the storage requests of an idle shard with one standby, counted by two real servers and scaled to a month."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from bench import pair as pairs
from bench.pair import Pair
from bench.rows import Row
from nstance.server.waits import WAITS

SETTLE_SECONDS = 12.0  # until the first renewal with a member is over
SECONDS = 60.0
MONTH_SECONDS = 30 * 86400.0
# Dollars per request of S3 in us-east-1: writes and listings, reads; deletions are free.
WRITE_PRICE, READ_PRICE = 5.0 / 1e6, 0.4 / 1e6
WRITES = frozenset({"create", "replace", "list"})
AUTHORITY_READS = 3
METRIC = 'nstance_storage_requests_total{code="'


async def run() -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as folder:
        async with pairs.on_files(Path(folder)) as pair:
            await asyncio.sleep(SETTLE_SECONDS)
            before, began = await asyncio.to_thread(_count, pair), time.monotonic()
            await asyncio.sleep(SECONDS)
            after, seconds = await asyncio.to_thread(_count, pair), time.monotonic() - began
    monthly = {op: (after[op] - before[op]) * MONTH_SECONDS / seconds for op in after if after[op] > before[op]}
    # Both servers also read the CA, its certificate and the nonce key, too rarely to be counted here.
    monthly["get"] = monthly.get("get", 0.0) + 2 * AUTHORITY_READS * MONTH_SECONDS / WAITS.ca_check
    price = sum(
        count * (WRITE_PRICE if op in WRITES else 0.0 if op == "delete" else READ_PRICE)
        for op, count in monthly.items()
    )
    yield Row(
        number="14",
        what="storage requests of an idle shard with one standby, a month",
        value=sum(monthly.values()),
        unit="requests",
        goal=1e6,
        detail=f"US$ {price:.2f} a month on S3; in {seconds:.0f} s: "
        + ", ".join(f"{after[op] - before[op]:.0f} {op}" for op in sorted(monthly))
        + f", and every {WAITS.ca_check:.0f} s {2 * AUTHORITY_READS} for the CA",
    )


def _count(pair: Pair) -> Counter[str]:
    """Requests by operation, of both servers."""
    found: Counter[str] = Counter()
    for id in ("a", "b"):
        for name, value in pair.metrics(id).items():
            if name.startswith(METRIC):
                found[name.partition('op="')[2].partition('"')[0]] += int(value)
    return found
