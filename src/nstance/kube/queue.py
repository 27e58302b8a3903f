"""Keys to look at, each by one worker at a time.

A key that is added while it waits is looked at once; added while it is being looked at, once more afterwards. What fails
is tried again, ever more slowly, until it succeeds; an event does not wait for that. The trap: a reconcile must read the
state as it is when it starts, because a key says only that something changed, not what.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from nstance.clock import Clock, Rng
from nstance.kube import errors
from nstance.tasks.backoff import Backoff

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

RETRY = Backoff(0.005, 60.0, jitter=0.5)
LONGEST_PASS = 300.0


class Result(Enum):
    DONE = "done"
    AGAIN = "again"  # it asked to be looked at again later
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pass:
    """One look at one key, for metrics."""

    queue: str
    waited: float  # from when it was due to its start
    took: float
    result: Result
    depth: int  # keys that wait now


class Queue(Generic[K]):
    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        clock: Clock,
        rng: Rng,
        workers: int = 4,
        expected: tuple[type[Exception], ...] = (errors.KubeError,),
        report: Callable[[Pass], None] | None = None,
        timeout: float = LONGEST_PASS,
    ) -> None:
        """`reconcile` may return after how many seconds to look again. Errors that are not `expected` are logged with
        their traceback. `timeout` bounds one look."""
        self.name = name
        self._reconcile = reconcile
        self._clock = clock
        self._rng = rng
        self._workers = workers
        self._expected = expected
        self._report = report
        self._timeout = timeout
        self._ready: asyncio.Queue[K] = asyncio.Queue()  # bounded by the number of keys: each is in there once
        self._due: dict[K, float] = {}  # those in _ready, and since when
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._busy: set[K] = set()
        self._again: set[K] = set()  # added while busy
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        """Keys that wait for a worker."""
        return len(self._due)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is being looked at; something may be due later."""
        return not self._due and not self._busy

    def add(self, key: K, after: float = 0.0) -> None:
        """Look at it then; if it is due sooner already, that holds."""
        if key in self._due or key in self._again:
            return
        timer = self._later.get(key)
        if after > 0:
            loop = asyncio.get_running_loop()
            if timer is None or timer.when() > loop.time() + after:
                if timer is not None:
                    timer.cancel()
                self._later[key] = loop.call_later(after, self._now, key)
            return
        if timer is not None:
            timer.cancel()
        self._now(key)

    def _now(self, key: K) -> None:
        self._later.pop(key, None)
        if key in self._busy:
            self._again.add(key)
        elif key not in self._due:
            self._due[key] = self._clock.monotonic()
            self._ready.put_nowait(key)

    async def run(self) -> None:
        """For ever. Cancelling it cancels what is being looked at."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    group.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            for timer in self._later.values():
                timer.cancel()
            self._later.clear()

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            waited = self._clock.monotonic() - self._due.pop(key)
            self._busy.add(key)
            started = self._clock.monotonic()
            try:
                result, after = await self._look(key)
            finally:
                self._busy.discard(key)
            if after is not None:
                self.add(key, after)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            if self._report is not None:
                self._report(Pass(self.name, waited, self._clock.monotonic() - started, result, len(self._due)))

    async def _look(self, key: K) -> tuple[Result, float | None]:
        try:
            async with asyncio.timeout(self._timeout):
                after = await self._reconcile(key)
        except self._expected as problem:
            return Result.FAILED, self._failed(key, problem)
        except TimeoutError:
            log.error(
                "a reconcile took too long and was stopped",
                extra={"queue": self.name, "key": str(key), "seconds": self._timeout},
            )
            return Result.FAILED, self._delay(key)
        except Exception:
            log.exception("a reconcile failed unexpectedly", extra={"queue": self.name, "key": str(key)})
            return Result.FAILED, self._delay(key)
        self._failures.pop(key, None)
        return (Result.DONE if after is None else Result.AGAIN), after

    def _failed(self, key: K, problem: Exception) -> float:
        delay = self._delay(key)
        if isinstance(problem, errors.ThrottledError):
            delay = max(delay, problem.delay)
        # A lost race is everyday life and gone at the next look.
        level = logging.INFO if isinstance(problem, errors.ConflictError) else logging.WARNING
        log.log(
            level,
            "a reconcile failed and will be repeated",
            extra={"queue": self.name, "key": str(key), "problem": str(problem), "delay": round(delay, 3)},
        )
        return delay

    def _delay(self, key: K) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return RETRY.delay(failures, self._rng)
