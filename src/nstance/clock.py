"""Time and randomness: the only file that reads them from the system.

There are three kinds of time, because each is wrong in its own way. `monotonic` measures durations and never jumps; it
decides leases. `wall` is for people and may jump by hours. `steady` is seconds since 1970 like `wall`, but moves with the
monotonic clock and approaches the wall clock slowly: it decides ages, so that a clock step of an hour does not expire a
fleet. The trap: a VM's monotonic clock stands still while the VM is suspended; `boot` does not, and a leader compares the
two before it trusts its lease.
"""

import asyncio
import random
import time
from typing import Protocol

STEADY_SLEW = 0.001  # seconds the steady clock may move towards the wall clock per second


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never jumps."""
        ...

    def boot(self) -> float:
        """Like monotonic, but continues while the machine is suspended."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 by the machine's clock; may jump."""
        ...

    def steady(self) -> float:
        """Seconds since 1970 without jumps: for ages and deadlines in records."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class AnchoredClock(Clock, Protocol):
    def anchor(self, steady: float) -> None:
        """Continue the steady clock from this time, which another server has counted."""
        ...


class Rng(Protocol):
    def uniform(self, low: float, high: float) -> float: ...

    def bits(self, count: int) -> int: ...

    def bytes(self, count: int) -> bytes: ...


class Steady:
    """Follows a wall clock without its jumps. Not thread-safe; cheap enough to call per event."""

    def __init__(self, wall: float, monotonic: float) -> None:
        self._value = wall
        self._monotonic = monotonic

    def read(self, wall: float, monotonic: float) -> float:
        passed = max(0.0, monotonic - self._monotonic)
        self._monotonic = monotonic
        ahead = self._value + passed
        allowed = passed * STEADY_SLEW
        self._value = ahead + min(allowed, max(-allowed, wall - ahead))
        return self._value


class SystemClock:
    def __init__(self) -> None:
        self._steady = Steady(time.time(), time.monotonic())

    def anchor(self, steady: float) -> None:
        self._steady = Steady(steady, self.monotonic())

    def monotonic(self) -> float:
        return time.monotonic()

    def boot(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    def wall(self) -> float:
        return time.time()

    def steady(self) -> float:
        return self._steady.read(self.wall(), self.monotonic())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemRng:
    """The operating system's randomness, also for keys and nonces."""

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def bits(self, count: int) -> int:
        return self._source.getrandbits(count)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)
