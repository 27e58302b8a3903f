"""One run: starts a shard, breaks it for a while, waits for rest and judges the result.

The seed decides the order of the faults, their durations and their targets. Real processes do not replay exactly: the same
seed gives the same plan, not the same run.
"""

import asyncio
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos import audit, faults, watch, world
from chaos.faults import Fault, Strike

OVERLAP_SHARE = 0.5  # of faults that do not wait for the end of the one before
MAX_ACTIVE = 3
FAULT_TIMEOUT_SECONDS = 120.0  # repair included
PAUSE_SECONDS = (0.3, 2.0)  # between two faults
PROGRESS_SECONDS = 5.0
EVIDENCE = ("logs", "bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    agents: int = 200
    seconds: float = 300.0
    seed: int = 1
    faults: Sequence[str] = tuple(faults.FAULTS)
    evidence: Path = Path("temp")  # for logs and bucket of a run with violations

    @property
    def boot_within(self) -> float:
        return 60.0 + 1.5 * self.agents


@dataclass(frozen=True, slots=True)
class Result:
    plan: Plan
    booted: float  # seconds until all agents were connected
    strikes: list[Strike]
    watched: watch.Watch
    verdict: audit.Verdict
    seconds: float


@dataclass
class Run:
    plan: Plan
    log: Callable[[str], None]
    strikes: list[Strike] = field(default_factory=list)
    phase: str = "starting"
    began: float = field(default_factory=time.monotonic)

    async def play(self) -> Result:
        plan = self.plan
        # A dying agent may still write to the directory when it is removed.
        with tempfile.TemporaryDirectory(prefix="nstance-chaos-", ignore_cleanup_errors=True) as folder:
            made = world.World(Path(folder), plan.agents, random.Random(f"chaos-{plan.seed}"))
            async with world.running(made), watch.watching(made) as watched, self._showing_progress(made, watched):
                try:
                    booted = await made.until(
                        lambda: bool(watched.samples) and watched.samples[-1].connected == plan.agents,
                        plan.boot_within,
                        f"{plan.agents} agents connected",
                    )
                    self.phase = "faults"
                    await self._break(made)
                    made.repair()
                    self.phase = "waiting for rest"
                    problems = [problem for strike in self.strikes for problem in strike.problems]
                    verdict = await audit.judge(made, watched, problems)
                except Exception:
                    self._keep_evidence(made)
                    raise
                if verdict.problems:
                    self._keep_evidence(made)
                return Result(plan, booted, self.strikes, watched, verdict, time.monotonic() - self.began)

    async def _break(self, made: world.World) -> None:
        rng = random.Random(f"order-{self.plan.seed}")
        until = time.monotonic() + self.plan.seconds
        running: dict[asyncio.Task[None], Fault] = {}
        try:
            for chosen in self._order(rng):
                overlap = rng.random() < OVERLAP_SHARE
                while running and (
                    not overlap
                    or len(running) >= MAX_ACTIVE
                    or any(other.touches & chosen.touches for other in running.values())
                ):
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    running = {task: other for task, other in running.items() if not task.done()}
                await asyncio.sleep(rng.uniform(*PAUSE_SECONDS))
                if time.monotonic() >= until:
                    break
                running[asyncio.create_task(self._run_fault(made, chosen))] = chosen
            if running:
                await asyncio.wait(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _order(self, rng: random.Random) -> Iterator[Fault]:
        """Each once, shuffled, then again."""
        while True:
            for name in rng.sample(list(self.plan.faults), len(self.plan.faults)):
                yield faults.FAULTS[name]

    async def _run_fault(self, made: world.World, chosen: Fault) -> None:
        strike = Strike(chosen.name)
        self.strikes.append(strike)
        try:
            async with asyncio.timeout(FAULT_TIMEOUT_SECONDS):
                await chosen.act(made, strike)
        except TimeoutError:
            strike.problems.append(f"{chosen.name} took longer than {FAULT_TIMEOUT_SECONDS:.0f} s")
        finally:
            strike.ended = time.time()
            strike.now = ""

    @contextlib.asynccontextmanager
    async def _showing_progress(self, made: world.World, watched: watch.Watch) -> AsyncIterator[None]:
        async def show() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                self.log(self._line(made, watched))

        task = asyncio.create_task(show())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _line(self, made: world.World, watched: watch.Watch) -> str:
        broken = "; ".join(strike.now for strike in self.strikes if strike.now) or self.phase
        sample = watched.samples[-1] if watched.samples else None
        leader = sample.leader or (sample.holder if not sample.leaderless else "") if sample is not None else ""
        return (
            f"{time.monotonic() - self.began:5.0f} s  {watched.running:3d}/{made.agents} VMs"
            f"  {sample.connected if sample else 0:3d} connected"
            f"  {f'{leader} leads' if leader else 'no leader':9}  epoch {made.lease()[0]:<3d}  {broken}"
        )

    def _keep_evidence(self, made: world.World) -> None:
        place = self.plan.evidence / f"chaos-{self.plan.seed}"
        shutil.rmtree(place, ignore_errors=True)
        for name in EVIDENCE:
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(made.dir / name, place / name)
        self.log(f"logs and bucket were copied to {place}")
