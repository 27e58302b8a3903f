"""How a server collects its garbage: often, and little at a time.

A full collection looks at every object there is. With 5,000 agents that is 1.5 million, and nobody is answered for a
second; while agents arrive, Python would do so a dozen times. So what has survived one look is set aside, and only what
came since is looked at. Cycles of objects that were set aside are found only when everything is looked at, which happens
when the memory of the process has doubled; connections leave none (`wire.transport`). The trap: even to count what was set
aside, Python walks over all of it, which takes 40 ms with 1,000 agents.
"""

import gc
import resource
from collections.abc import Callable
from pathlib import Path

from nstance.clock import Clock

EVERY = 0.2  # seconds
ENOUGH = 2  # rounds of Python's own collection of young objects, a few thousand of them each
NEVER = 1 << 30


def resident() -> int:
    """Bytes of this process that are in memory; where the system does not say so, the most that ever were."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class GcTuner:
    def __init__(self, clock: Clock, used: Callable[[], int] = resident) -> None:
        self._clock = clock
        self._used = used
        self.known = 0  # bytes that were in use after the last full collection

    async def run(self) -> None:
        before = gc.get_threshold()
        gc.set_threshold(before[0], before[1], NEVER)
        try:
            self.collect_all()
            while True:
                await self._clock.sleep(EVERY)
                if gc.get_count()[2] >= ENOUGH:
                    self.collect()
        finally:
            gc.unfreeze()
            gc.set_threshold(*before)

    def collect(self) -> None:
        if self._used() > 2 * self.known:
            self.collect_all()
        else:
            gc.collect()
            gc.freeze()

    def collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self.known = self._used()
