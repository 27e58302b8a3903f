"""Row 16: leadership of real servers while storage is slow, with and without a standby.

The storage is dev-s3 behind a proxy that delays each answer. The servers start while it is fast. From half a minute after it
became slow, the leader is sampled twice a second for a minute.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench import pair as pairs
from bench.pair import Pair
from bench.rows import Row
from bench.wires import Wire
from nstance.dev.s3 import main as s3

DELAYS = (0.8, 2.0, 5.0)  # seconds per request
DELAYS_WITHOUT_STANDBY = (2.0,)
SETTLE_SECONDS, SECONDS, SAMPLE_SECONDS = 30.0, 60.0, 0.5


@dataclass
class Shard:
    slow: float
    pair: Pair
    wire: Wire
    servers: tuple[str, ...]

    def leader(self) -> tuple[str, int] | None:
        """The leader and its epoch."""
        for id in self.servers:
            found = self.pair.lease(id) if self.pair.acts(id) else None
            if found is not None:
                return id, int(found["epoch"])
        return None

    async def start(self) -> None:
        await self.wire.start("127.0.0.1")
        for id in self.servers:
            await self.pair.start(id, pairs.s3_environment(f"http://{self.wire.address}"))
        if len(self.servers) > 1:
            await self.pair.wait_complete()
        else:
            await self.pair.until_acts(self.servers[0])

    async def measure(self) -> Row:
        before = await asyncio.to_thread(self.leader)
        self.wire.delay = self.slow
        await asyncio.sleep(SETTLE_SECONDS)
        found = []
        for _ in range(round(SECONDS / SAMPLE_SECONDS)):
            found.append(await asyncio.to_thread(self.leader))
            await asyncio.sleep(SAMPLE_SECONDS)
        present = [each for each in found if each is not None]
        epochs = {epoch for _, epoch in present}
        standby = "with a standby" if len(self.servers) > 1 else "without a standby"
        changes = max(epochs, default=0) - (before[1] if before is not None else 0)
        return Row(
            number="16",
            what=f"storage takes {self.slow:g} s per request, {standby}: leader present after {SETTLE_SECONDS:.0f} s",
            value=100.0 * len(present) / len(found),
            unit="%",
            goal=95.0,
            at_least=True,
            detail=f"{len(present)} of {len(found)} samples; {changes} changes of leader since it became slow",
        )

    async def close(self) -> None:
        await self.pair.close()
        await self.wire.close()


def _make_pair(folder: Path, bucket: Path) -> Pair:
    folder.mkdir()
    pair = Pair(folder, ("--storage=s3", f"--bucket={folder.name}"))
    pairs.put_config(bucket, pair)
    return pair


async def run() -> AsyncIterator[Row]:
    cases = [*((slow, ("a", "b")) for slow in DELAYS), *((slow, ("a",)) for slow in DELAYS_WITHOUT_STANDBY)]
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as home:
        async with contextlib.AsyncExitStack() as stack:
            buckets = {f"shard{number}": Path(home, f"bucket-{number}") for number in range(len(cases))}
            port = await stack.enter_async_context(s3.serving(buckets, port=0))
            shards = []
            for (name, bucket), (slow, servers) in zip(buckets.items(), cases, strict=True):
                shards.append(Shard(slow, _make_pair(Path(home, name), bucket), Wire(port), servers))
                stack.push_async_callback(shards[-1].close)
            await asyncio.gather(*(shard.start() for shard in shards))
            for row in await asyncio.gather(*(shard.measure() for shard in shards)):
                yield row
