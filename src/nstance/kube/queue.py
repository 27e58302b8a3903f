"""A work queue: keys to reconcile, each by one worker at a time.

A key that is added while it waits is reconciled once; added while it is being reconciled, once more afterwards. A failure
is retried with growing delays until it succeeds; an event is not delayed by that. The trap: a reconcile must read the
state when it starts, because a key only says that something changed.
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
RECONCILE_TIMEOUT_SECONDS = 300.0
MIRROR_DELAY_FAILURES = 8  # about a second


class Result(Enum):
    DONE = "done"
    AGAIN = "again"  # to be reconciled again later
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pass:
    """One reconcile of one key, for metrics."""

    queue: str
    waited: float  # seconds from when it was due to its start
    took: float  # seconds
    result: Result
    depth: int  # of the queue afterwards


@dataclass(frozen=True, slots=True)
class Rules:
    workers: int = 4
    expected: tuple[type[Exception], ...] = (errors.KubeError,)  # others are logged with a traceback
    timeout: float = RECONCILE_TIMEOUT_SECONDS  # of one reconcile


DEFAULT_RULES = Rules()


class Queue(Generic[K]):
    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        clock: Clock,
        rng: Rng,
        rules: Rules = DEFAULT_RULES,
        report: Callable[[Pass], None] | None = None,
    ) -> None:
        """`reconcile` may return the seconds until the next reconcile."""
        self.name = name
        self._reconcile = reconcile
        self._clock = clock
        self._rng = rng
        self._rules = rules
        self._report = report
        self._ready: asyncio.Queue[K] = asyncio.Queue()  # bounded: each key is in it at most once
        self._due: dict[K, float] = {}  # keys in _ready: since when
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._busy: set[K] = set()
        self._again: set[K] = set()  # added while busy
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        """Keys that wait for a worker."""
        return len(self._due)

    def add(self, key: K, after: float = 0.0) -> None:
        """Reconciles a key after some seconds, or earlier if it is due earlier."""
        if key in self._due or key in self._again:
            return
        timer = self._later.get(key)
        if after > 0:
            loop = asyncio.get_running_loop()
            if timer is None or timer.when() > loop.time() + after:
                if timer is not None:
                    timer.cancel()
                self._later[key] = loop.call_later(after, self._add_now, key)
            return
        if timer is not None:
            timer.cancel()
        self._add_now(key)

    def _add_now(self, key: K) -> None:
        self._later.pop(key, None)
        if key in self._busy:
            self._again.add(key)
        elif key not in self._due:
            self._due[key] = self._clock.monotonic()
            self._ready.put_nowait(key)

    async def run(self) -> None:
        """Runs until cancelled, which also cancels running reconciles."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._rules.workers):
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
                result, after = await self._reconcile_once(key)
            finally:
                self._busy.discard(key)
            if after is not None:
                self.add(key, after)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            if self._report is not None:
                self._report(Pass(self.name, waited, self._clock.monotonic() - started, result, len(self._due)))

    async def _reconcile_once(self, key: K) -> tuple[Result, float | None]:
        try:
            async with asyncio.timeout(self._rules.timeout):
                after = await self._reconcile(key)
        except self._rules.expected as problem:
            return Result.FAILED, self._on_failure(key, problem)
        except TimeoutError:
            log.error(
                "failed to reconcile: timed out",
                extra={"queue": self.name, "key": str(key), "seconds": self._rules.timeout},
            )
            return Result.FAILED, self._delay(key)
        except Exception:
            log.exception("failed to reconcile: unexpected error", extra={"queue": self.name, "key": str(key)})
            return Result.FAILED, self._delay(key)
        self._failures.pop(key, None)
        return (Result.DONE if after is None else Result.AGAIN), after

    def _on_failure(self, key: K, problem: Exception) -> float:
        delay = self._delay(key)
        if isinstance(problem, errors.ThrottledError):
            delay = max(delay, problem.delay)
        # Conflicts are common and resolve with the next reconcile, and a mirror shows an object for a moment longer than it
        # exists.
        is_gone = isinstance(problem, errors.NotFoundError) and self._failures[key] <= MIRROR_DELAY_FAILURES
        is_common = isinstance(problem, errors.ConflictError) or is_gone
        level = logging.INFO if is_common else logging.WARNING
        log.log(
            level,
            "failed to reconcile, will retry",
            extra={"queue": self.name, "key": str(key), "problem": str(problem), "delay": round(delay, 3)},
        )
        return delay

    def _delay(self, key: K) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return RETRY.delay(failures, self._rng)
