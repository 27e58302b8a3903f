"""How a server collects its garbage: often, and little at a time.

A full collection looks at every object there is. With 5,000 agents that is 1.5 million, and nobody is answered for a
second; while agents arrive, Python would do so a dozen times. So what has survived one look is set aside, and only what
came since is looked at. Connections that end leave circles behind which can only be found where they were set aside:
when that has doubled, all of it is looked at once more.
"""

import gc

from nstance.clock import Clock

EVERY = 0.2  # seconds
ENOUGH = 2  # rounds of Python's own collection of young objects, a few thousand of them each
NEVER = 1 << 30


class Garbage:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.known = 0  # objects that were alive after the last full collection

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
        if gc.get_freeze_count() > 2 * self.known:
            self.collect_all()
        else:
            gc.collect()
            gc.freeze()

    def collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self.known = gc.get_freeze_count()
