"""Compares the duration of the simulator's failovers with real ones.

Real: pairs of `nstance-server` processes, from a fault until the standby's ports are open (rows 4 and 5 of the benchmark).
Virtual: the same faults in the simulator, with storage as slow as it was measured here at the same time. The trap: virtual
time has no processor time, which is most of a handover of some milliseconds. So the median processor time that the real
standbys used is added to the simulator's results.
"""

import asyncio
import json as jsonlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import uvloop
from bench import failover
from bench.rows import percentile

from chaos import virtual
from nstance.clock import SystemClock
from nstance.objects import file
from nstance.objects.port import Key

FACTOR = 2.0
SEEDS = 100  # virtual failovers of each kind
PROBE_INTERVAL_SECONDS = 0.1
BREAKS: dict[str, virtual.Break] = dict(
    zip(failover.GOALS, (virtual.kill, virtual.pause, virtual.resign, virtual.cut), strict=True)
)


@dataclass(frozen=True, slots=True)
class Compared:
    what: str
    real: list[float]
    virtual: list[float]
    busy: float  # processor seconds of a takeover, part of both

    def ratio(self, share: float) -> float:
        """Real to virtual."""
        return percentile(self.real, share) / percentile(self.virtual, share)

    @property
    def agree(self) -> bool:
        """Compares p50 and p90: the maximum of a few and the maximum of many are not comparable."""
        return all(1 / FACTOR <= self.ratio(share) <= FACTOR for share in (0.5, 0.9))


def main(*, rounds: int, pairs: int, json: bool, log: Callable[[str], None]) -> int:
    real, storage = uvloop.run(_real(rounds=rounds, pairs=pairs, log=log))
    log(f"a write takes {storage * 1000:.1f} ms here; {SEEDS} virtual failovers of each kind follow")
    found = []
    for what, took in real:
        busy = percentile([each.busy for each in took], 0.5)
        simulated = virtual.measure(BREAKS[what], count=SEEDS, storage=storage)
        found.append(Compared(what, [each.seconds for each in took], [each + busy for each in simulated], busy))
    if json:
        sys.stdout.write(jsonlib.dumps([_as_json(each) for each in found], indent=2) + "\n")
    else:
        sys.stdout.write(_table(found) + "\n")
    return 0 if all(each.agree for each in found) else 1


async def _real(
    *, rounds: int, pairs: int, log: Callable[[str], None]
) -> tuple[list[tuple[str, list[failover.Took]]], float]:
    """The real failovers, and the median of a write to storage at the same time."""
    found, writes = [], list[float]()
    probing = asyncio.create_task(_probe(writes))
    try:
        async for what, took in failover.measured(count=pairs, rounds=rounds):
            middle = percentile([each.seconds for each in took], 0.5)
            log(f"leader {what}: {len(took)} real failovers, median {middle:.3f} s")
            found.append((what, took))
    finally:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
    return found, percentile(writes, 0.5)


async def _probe(writes: list[float]) -> None:
    with tempfile.TemporaryDirectory(prefix="nstance-chaos-") as folder:
        store = file.FileStore(folder, clock=SystemClock())
        try:
            version = await store.create(Key("probe"), b"0")
            while True:
                began = time.monotonic()
                version = await store.replace(Key("probe"), f"{began}".encode(), seen=version)
                writes.append(time.monotonic() - began)
                await asyncio.sleep(PROBE_INTERVAL_SECONDS)
        finally:
            await store.close()


def _table(found: list[Compared]) -> str:
    lines = [f"{'leader':24} {'':8} {'n':>4} {'p50':>8} {'p90':>8} {'max':>8}"]
    for each in found:
        for word, took in (("real", each.real), ("virtual", each.virtual)):
            middle, high = percentile(took, 0.5), percentile(took, 0.9)
            title = each.what if word == "real" else ""
            lines.append(f"{title:24} {word:8} {len(took):4d} {middle:6.3f} s {high:6.3f} s {max(took):6.3f} s")
        word = "agree" if each.agree else f"DIFFER by more than a factor of {FACTOR:g}"
        lines.append(
            f"{'':24} {'ratio':8} {'':4} {each.ratio(0.5):8.2f} {each.ratio(0.9):8.2f} {'':8}  {word}"
            f" ({each.busy * 1000:.0f} ms of processor time)"
        )
    return "\n".join(lines)


def _as_json(each: Compared) -> dict[str, object]:
    return {
        "what": each.what,
        "real": each.real,
        "virtual": each.virtual,
        "ratio_p50": each.ratio(0.5),
        "ratio_p90": each.ratio(0.9),
        "busy": each.busy,
        "agree": each.agree,
    }
