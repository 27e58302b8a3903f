"""Counts changes of leadership on a machine that is too busy: a healthy leader must keep its term.

A leader and its standby run beside processes that never sleep. Every half second the lease is asked for. A higher epoch is a
change of leadership that nobody needed. A sample without an answer is not: a busy server answers late.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import pair

SAMPLE_INTERVAL_SECONDS = 0.5
REPORT_INTERVAL_SECONDS = 60.0


@dataclass
class Watched:
    first_epoch: int
    last_epoch: int
    samples: int = 0
    answered: int = 0

    @property
    def changes(self) -> int:
        return self.last_epoch - self.first_epoch


async def watch(*, load: int, seconds: float, log: Callable[[str], None]) -> Watched:
    """`load`: how many processes burn processor time meanwhile."""
    with tempfile.TemporaryDirectory(prefix="nstance-busy-") as folder:
        async with pair.on_files(Path(folder)) as both, _burning(load):
            started = time.monotonic()
            next_report = started
            watched: Watched | None = None
            while (now := time.monotonic()) < started + seconds:
                epochs = [lease["epoch"] for id in ("a", "b") if (lease := await asyncio.to_thread(both.lease, id))]
                watched = watched or (Watched(max(epochs), max(epochs)) if epochs else None)
                if watched is not None:
                    watched.samples += 1
                    watched.answered += bool(epochs)
                    watched.last_epoch = max([watched.last_epoch, *epochs])
                if now >= next_report and watched is not None:
                    next_report = now + REPORT_INTERVAL_SECONDS
                    log(f"{now - started:.0f} s, load average {os.getloadavg()[0]:.1f}: {summary(watched)}")
                await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)
            if watched is None:
                raise TimeoutError(f"no server answered as the leader within {seconds:.0f} s")
            if watched.changes:
                for id in ("a", "b"):
                    pair.print_log_tail(Path(folder) / f"{id}.log")
            return watched


def summary(watched: Watched) -> str:
    return f"{watched.changes} changes of leadership, the leader answered {watched.answered} of {watched.samples} times"


@asynccontextmanager
async def _burning(count: int) -> AsyncIterator[None]:
    running = [await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass") for _ in range(count)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            await each.wait()
