"""A machine whose wall clock is wrong by so many seconds."""

import time

from nstance.clock import SystemClock


class OffClock(SystemClock):
    def __init__(self, off: float) -> None:
        self._off = off
        super().__init__()
        self.anchor(self.wall())

    def wall(self) -> float:
        return time.time() + self._off
