"""One short schedule, and every way to break it at a named point.

The schedule creates an instance, scales up and down, changes the template, resigns and takes snapshots, so that every point
is reached. It is played again and again, each time with a crash or a pause at one visit of one point or of two, or with one
call to storage or to the provider that fails.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nstance.points import Point
from nstance.sim.desired_groups import DesiredGroup, DesiredGroups
from nstance.sim.search import workers
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

SEED = 7
# Seconds to wait, and how the group changes then; without a change the leader resigns.
SCHEDULE: tuple[tuple[float, dict[str, Any]], ...] = (
    (8.0, {"size": 2}),
    (8.0, {"generation": 1}),
    (14.0, {}),
    (6.0, {"size": 1}),
    (10.0, {}),
    (14.0, {"size": 3}),  # enough writes for a snapshot that frees older slots
    (8.0, {"size": 1}),
)
VISITS = (1, 2, 4)
STORAGE_ENDINGS = ("failed", "lost", "late")
PROVIDER_ENDINGS = ("failed", "lost", "unsent", "late", "ignored")
MAX_WRITES = 100  # to storage: at least as many as the schedule makes
MAX_CHANGES = 12  # calls to the provider that change something
SETTLE_SECONDS = 600.0
SETUP = Setup(servers=2, snapshots=True, desired_groups=DesiredGroups(groups={"web": DesiredGroup(size=1, drain=4.0)}))


@dataclass(frozen=True, slots=True)
class Case:
    """The faults of one run: (point, its n-th visit, "crash" or "pause"), and (n-th call, how it ends), from one."""

    crashes: tuple[tuple[Point, int, str], ...] = ()
    storage: tuple[tuple[int, str], ...] = ()
    provider: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        parts = [f"{fate} at visit {n} of {point.value}" for point, n, fate in self.crashes]
        parts += [f"write {n} to storage {ending}" for n, ending in self.storage]
        parts += [f"change {n} at the provider {ending}" for n, ending in self.provider]
        return " and ".join(parts) or "nothing"


def play_schedule(w: World) -> None:
    w.begin()
    for seconds, change in SCHEDULE:
        w.advance(seconds)
        if change:
            desired = dataclasses.replace(w.desired_groups.groups["web"], **change)
            w.configure(DesiredGroups(groups={"web": desired}, heartbeat=w.desired_groups.heartbeat))
        elif (leader := w.leader()) is not None:
            w.resign(leader)
    w.advance(6.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    violations: tuple[str, ...]
    visits: Counter[Point]


def play(case: Case, *, on_trace: Callable[[str], None] | None = None) -> Outcome:
    with world(SEED, SETUP, on_trace=on_trace) as w:
        w.crashes = list(case.crashes)
        w.storage_faults.script = list(case.storage)
        w.provider_faults.script = list(case.provider)
        play_schedule(w)
        w.stop_faults()
        w.settle(SETTLE_SECONDS)
        return Outcome(case, tuple(w.violations), Counter(w.visits))


def singles() -> Iterator[Case]:
    yield Case()
    for point in Point:
        for visit in VISITS:
            for fate in ("crash", "pause"):
                yield Case(crashes=((point, visit, fate),))


def calls() -> Iterator[Case]:
    for number in range(1, MAX_WRITES + 1):
        for ending in STORAGE_ENDINGS:
            yield Case(storage=((number, ending),))
    for number in range(1, MAX_CHANGES + 1):
        for ending in PROVIDER_ENDINGS:
            yield Case(provider=((number, ending),))


def pairs() -> Iterator[Case]:
    """Every two points, the second one at its next visit after the first."""
    fates = [(point, fate) for point in Point for fate in ("crash", "pause")]
    for first, first_fate in fates:
        for second, second_fate in fates:
            visit = 2 if first is second else 1
            yield Case(crashes=((first, 1, first_fate), (second, visit, second_fate)))


def cases(*, with_pairs: bool) -> list[Case]:
    return [*singles(), *calls(), *(pairs() if with_pairs else ())]


def run_all(*, with_pairs: bool, jobs: int) -> int:
    """Play all cases and print those that failed. Returns their number."""
    all_cases = cases(with_pairs=with_pairs)
    failed, visits = 0, Counter[Point]()
    for outcome in workers.spread(play, all_cases, jobs=jobs, chunk=8):
        visits.update(outcome.visits)
        if outcome.violations:
            failed += 1
            print(f"{outcome.case}: {outcome.violations[0]}", flush=True)
            print(f"replay it: nstance-sim exhaustive --only '{outcome.case}'", flush=True)
    print(f"{len(all_cases)} cases, {failed} with violations")
    for point in Point:
        if not visits[point]:
            print(f"never reached: {point.value}")
            failed += 1
    return failed
