"""Collects Python's garbage often, and little at a time.

A full collection visits every object. With 5,000 agents that is 1.5 million, and the server answers nobody for a second;
while agents connect, Python would do so a dozen times. So objects that survived one collection are frozen, and only newer
ones are visited. Cycles of frozen objects are found by a full collection when the memory of the process has doubled;
connections leave none (`wire.transport`). The trap: even counting frozen objects visits them all, 40 ms with 1,000 agents.
"""

import gc
import resource
from collections.abc import Callable
from pathlib import Path

from nstance.clock import Clock

INTERVAL_SECONDS = 0.2
MIN_YOUNG_COLLECTIONS = 2  # of Python's own, of a few thousand objects each
NEVER = 1 << 30


def resident() -> int:
    """Bytes of this process in memory; where the system does not report them, their maximum so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class GcTuner:
    def __init__(self, clock: Clock, used: Callable[[], int] = resident) -> None:
        self._clock = clock
        self._used = used
        self.baseline_bytes = 0  # in use after the last full collection

    async def run(self) -> None:
        before = gc.get_threshold()
        gc.set_threshold(before[0], before[1], NEVER)
        try:
            self.collect_all()
            while True:
                await self._clock.sleep(INTERVAL_SECONDS)
                if gc.get_count()[2] >= MIN_YOUNG_COLLECTIONS:
                    self.collect()
        finally:
            gc.unfreeze()
            gc.set_threshold(*before)

    def collect(self) -> None:
        if self._used() > 2 * self.baseline_bytes:
            self.collect_all()
        else:
            gc.collect()
            gc.freeze()

    def collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self.baseline_bytes = self._used()
