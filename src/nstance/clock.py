"""The one file that reads time and chance.

Three kinds of time, because each one lies in its own way. `monotonic` measures how long something took and never jumps;
it decides leases. `wall` is what a person reads; it may jump by hours. `steady` is seconds since 1970 like `wall`, but
moves with the monotonic clock and approaches the wall clock slowly: it decides ages, so that a clock step of an hour
does not expire a fleet. The trap: a virtual machine's monotonic clock stands still while it is suspended; `boot` does
not, and a leader compares the two before it trusts its lease.
"""

import asyncio
import random
import time
from typing import Protocol

STEADY_SLEW = 0.001  # seconds the steady clock may move towards the wall clock per second


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some moment; never jumps."""
        ...

    def boot(self) -> float:
        """Like monotonic, but goes on while the machine is suspended."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 as the machine believes; may jump."""
        ...

    def steady(self) -> float:
        """Seconds since 1970 that never jump: for ages and deadlines kept in records."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class AnchoredClock(Clock, Protocol):
    def anchor(self, steady: float) -> None:
        """Let the steady clock go on from there: somebody else's time is what counts."""
        ...


class Rng(Protocol):
    def uniform(self, low: float, high: float) -> float: ...

    def bits(self, count: int) -> int: ...

    def bytes(self, count: int) -> bytes: ...


class Steady:
    """Follows a wall clock without its jumps. One reader at a time; cheap enough to call per event."""

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
    """The operating system's randomness: good for keys and nonces too."""

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def bits(self, count: int) -> int:
        return self._source.getrandbits(count)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)
