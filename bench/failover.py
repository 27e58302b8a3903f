"""Rows 4 and 5: the time from a fault of the leader until its standby acts, with real servers.

Several pairs are prepared first and broken together afterwards, so that no process starts during a measurement. A leader
that is cut off receives and sends no byte, neither to storage nor to peers, and no connection is reset.
"""

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from bench import pair as pairs
from bench.pair import Pair
from bench.rows import Row, percentile, spread
from bench.wires import Wire
from nstance.dev.s3 import main as s3

PAIRS, ROUNDS = 5, 4
CUT_HOST = "127.0.0.2"  # of the proxies in front of the election ports
GOALS = {
    "killed (SIGKILL)": ("4", 0.6),
    "paused (SIGSTOP)": ("4", 1.5),
    "stopped (SIGTERM)": ("4", 0.5),
    "cut off without a reset": ("5", 1.5),
}
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)


class Took(NamedTuple):
    """One failover: the time until the standby acted, and the processor time that it used."""

    seconds: float
    busy: float


async def run() -> AsyncIterator[Row]:
    async for what, took in measured(count=PAIRS, rounds=ROUNDS):
        number, goal = GOALS[what]
        yield _row(number, f"leader {what} → standby acts", [each.seconds for each in took], goal)


async def measured(*, count: int, rounds: int) -> AsyncIterator[tuple[str, list[Took]]]:
    """Each kind of fault, and the failovers that it caused."""
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            starting = [stack.enter_async_context(pairs.on_files(_make_dir(folder, number))) for number in range(count)]
            ready = await asyncio.gather(*starting)
            for what, number in zip(GOALS, SIGNALS, strict=False):
                took: list[Took] = []
                for _ in range(rounds):
                    took += await asyncio.gather(*(_break(pair, number) for pair in ready))
                yield what, took
    with tempfile.TemporaryDirectory(prefix="nstance-bench-") as folder:
        yield list(GOALS)[-1], await _cut_off(Path(folder), count=count, rounds=rounds)


def _make_dir(folder: str, number: int) -> Path:
    path = Path(folder, str(number))
    path.mkdir()
    return path


def _row(number: str, what: str, took: list[float], goal: float) -> Row:
    return Row(
        number=number,
        what=f"{what}, p99",
        value=percentile(took, 0.99),
        unit="s",
        goal=goal,
        detail=spread(took, "s", 2),
    )


async def _break(pair: Pair, number: signal.Signals) -> Took:
    leader, standby = await pair.wait_complete()
    busy = pair.busy(standby)
    sent = pair.signal(leader, number)
    took = Took(await pair.until_acts(standby) - sent, pair.busy(standby) - busy)
    await pair.end(leader)
    await pair.start(leader)
    return took


# ---- cut off


class Cuttable:
    """A pair on S3 whose servers can be cut off by their proxies."""

    def __init__(self, pair: Pair, s3_port: int) -> None:
        self.pair = pair
        self._s3_port = s3_port
        self._wires: dict[str, tuple[Wire, Wire]] = {}
        self._endpoints: dict[str, str] = {}

    async def open(self) -> None:
        for id in ("a", "b"):
            storage, peers = Wire(self._s3_port), Wire(self.pair.port(id, "election"))
            self._wires[id] = storage, peers
            await storage.start("127.0.0.1")
            self._endpoints[id] = f"http://{storage.address}"
            await peers.start(CUT_HOST, self.pair.port(id, "election"))
            await self.start(id)

    async def start(self, id: str) -> None:
        for wire in self._wires[id]:
            wire.pass_on()
        await self.pair.start(id, pairs.s3_environment(self._endpoints[id]))

    async def cut(self) -> Took:
        leader, standby = await self.pair.wait_complete()
        busy = self.pair.busy(standby)
        at = time.monotonic()
        # The standby reaches the leader through the leader's proxy, and the other way round.
        for wire in (*self._wires[leader], self._wires[standby][1]):
            wire.hold()
        took = Took(await self.pair.until_acts(standby) - at, self.pair.busy(standby) - busy)
        await self.pair.end(leader)
        self._wires[standby][1].pass_on()
        await self.start(leader)
        return took

    async def close(self) -> None:
        await self.pair.close()
        for wires in self._wires.values():
            for wire in wires:
                await wire.close()


async def _cut_off(folder: Path, *, count: int, rounds: int) -> list[Took]:
    took: list[Took] = []
    buckets = {f"pair{number}": _make_dir(str(folder), number) for number in range(count)}
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(s3.serving(buckets, port=0))
        cuttable = []
        for number, (name, bucket) in enumerate(buckets.items()):
            pair = Pair(
                _make_dir(str(folder), 100 + number), ("--storage=s3", f"--bucket={name}"), election_host=CUT_HOST
            )
            pairs.put_config(bucket, pair)
            each = Cuttable(pair, port)
            stack.push_async_callback(each.close)
            cuttable.append(each)
        await asyncio.gather(*(each.open() for each in cuttable))
        for _ in range(rounds):
            took += await asyncio.gather(*(each.cut() for each in cuttable))
    return took
