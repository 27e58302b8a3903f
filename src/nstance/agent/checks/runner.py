"""The readiness checks that the server configured: run at intervals, judged by consecutive passes or failures.

They continue while no server is reachable, so that the next report is true. A check that has neither passed nor failed
often enough has no result. Only a few run at a time, and the agent caps what a server may request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nstance.clock import Clock
from nstance.tasks import background
from nstance.v1 import agent_pb2

MAX_CHECKS = 32
AT_ONCE = 4
MIN_INTERVAL_SECONDS = 0.1

log = logging.getLogger(__name__)

Probe = Callable[[agent_pb2.Check], Awaitable[str]]


@dataclass(slots=True)
class Tally:
    """The result of one check, from its consecutive runs."""

    failures: int  # consecutive runs until it fails
    successes: int  # consecutive runs until it passes
    counts_from: float  # failures before this moment do not count, unless it has passed already
    passing: bool | None = None  # None: no result yet
    message: str = ""  # why it fails
    since: float = 0.0  # wall clock
    _row: int = 0  # consecutive runs that contradict the result
    _good: bool = False  # whether those runs passed

    def add(self, problem: str, *, now: float, wall: float) -> bool:
        """Count a run. Returns whether the result changed."""
        good = not problem
        if not good and self.passing is None and now < self.counts_from:
            self._row = 0
            return False
        if good is self.passing:
            self._row, self.message = 0, problem
            return False
        self._row = self._row + 1 if good is self._good else 1
        self._good = good
        if self._row < (self.successes if good else self.failures):
            return False
        self.passing, self.message, self.since, self._row = good, problem, wall, 0
        return True


@dataclass(slots=True)
class _Running:
    check: agent_pb2.Check
    tally: Tally
    task: asyncio.Task[None]


class Checks:
    def __init__(self, probe: Probe, clock: Clock) -> None:
        self.on_change: Callable[[], None] = lambda: None  # called when a result changes
        self.hash = ""  # of the active configuration
        self._probe = probe
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    def configure(self, config: agent_pb2.CheckConfig) -> None:
        """Run these checks from now on. An unchanged check keeps its result."""
        if len(config.checks) > MAX_CHECKS:
            log.error(
                "too many checks configured, ignoring some", extra={"checks": len(config.checks), "limit": MAX_CHECKS}
            )
        wanted = {check.name: check for check in config.checks[:MAX_CHECKS]}
        for name in [name for name, running in self._running.items() if wanted.get(name) != running.check]:
            self._running.pop(name).task.cancel()
        for name in wanted.keys() - self._running.keys():
            self._running[name] = self._start(wanted[name])
        if config.hash != self.hash:
            log.info("checks configured", extra={"checks": len(wanted)})
            self.hash = config.hash
            self.on_change()

    def results(self) -> list[agent_pb2.CheckResult]:
        """Results that are known, by name."""
        return [
            agent_pb2.CheckResult(
                name=name,
                passing=running.tally.passing,
                message=running.tally.message,
                since_unix_ms=int(running.tally.since * 1000),
            )
            for name, running in sorted(self._running.items())
            if running.tally.passing is not None
        ]

    async def serve(self) -> None:
        """Until cancelled; then all checks are stopped."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            tasks = [running.task for running in self._running.values()]
            self._running.clear()
            await background.end(tasks)

    def _start(self, check: agent_pb2.Check) -> _Running:
        tally = Tally(
            failures=max(1, check.failures),
            successes=max(1, check.successes),
            counts_from=self._clock.monotonic() + check.start_period_ms / 1000,
        )
        return _Running(check, tally, asyncio.create_task(self._run(check, tally)))

    async def _run(self, check: agent_pb2.Check, tally: Tally) -> None:
        clock, interval = self._clock, max(MIN_INTERVAL_SECONDS, check.interval_ms / 1000)
        while True:
            async with self._slots:
                began = clock.monotonic()
                problem = await self._probe(check)
            if tally.add(problem, now=clock.monotonic(), wall=clock.wall()):
                level, message = (logging.WARNING, "check failing") if problem else (logging.INFO, "check passing")
                log.log(level, message, extra={"check": check.name, **({"reason": problem} if problem else {})})
                self.on_change()
            await clock.sleep(max(MIN_INTERVAL_SECONDS, interval - (clock.monotonic() - began)))
