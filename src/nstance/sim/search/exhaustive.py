"""Small scope, nothing left out: one short story, and every way to break it at a named place.

The story makes an instance, scales up and down, changes the template, resigns and takes snapshots, so that every point is
reached. Then it is told again and again, each time with a crash or a pause at one visit of one point, or at two of them, or
with one call to storage or to the provider that ends badly.
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
VISITS = (1, 2, 4)
STORAGE_ENDINGS = ("failed", "lost", "late")
PROVIDER_ENDINGS = ("failed", "lost", "unsent", "late", "ignored")
CALLS = 100  # writes to storage that are bent, one per run: all that the story makes
CHANGES = 12  # calls to the provider that change something
SETTLES_WITHIN = 600.0
SETUP = Setup(servers=2, snapshots=True, desired_groups=DesiredGroups(groups={"web": DesiredGroup(size=1, drain=4.0)}))


@dataclass(frozen=True, slots=True)
class Case:
    """What goes wrong. `crashes`: (point, its n-th visit, "crash" or "pause"); calls are counted from one."""

    crashes: tuple[tuple[Point, int, str], ...] = ()
    storage: tuple[tuple[int, str], ...] = ()
    provider: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        parts = [f"{fate} at visit {n} of {point.value}" for point, n, fate in self.crashes]
        parts += [f"write {n} to storage {ending}" for n, ending in self.storage]
        parts += [f"change {n} at the provider {ending}" for n, ending in self.provider]
        return " and ".join(parts) or "nothing"


def story(w: World) -> None:
    """The story."""
    w.begin()
    w.advance(8.0)
    _scale(w, size=2)
    w.advance(8.0)
    _scale(w, generation=1)
    w.advance(14.0)
    _resign(w)
    w.advance(6.0)
    _scale(w, size=1)
    w.advance(10.0)
    _resign(w)
    w.advance(14.0)
    _scale(w, size=3)  # enough to write down for a snapshot that lets older slots go
    w.advance(8.0)
    _scale(w, size=1)
    w.advance(6.0)


def _scale(w: World, **fields: Any) -> None:
    desired = dataclasses.replace(w.desired_groups.groups["web"], **fields)
    w.tell(DesiredGroups(groups={"web": desired}, heartbeat=w.desired_groups.heartbeat))


def _resign(w: World) -> None:
    leader = w.leader()
    if leader is not None:
        w.resign(leader)


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    violations: tuple[str, ...]
    visits: Counter[Point]


def play(case: Case, *, tell: Callable[[str], None] | None = None) -> Outcome:
    with world(SEED, SETUP, tell=tell) as w:
        w.crashes = list(case.crashes)
        w.storage_faults.script = list(case.storage)
        w.provider_faults.script = list(case.provider)
        story(w)
        w.calm()
        w.settle(SETTLES_WITHIN)
        return Outcome(case, tuple(w.violations), Counter(w.visits))


def singles() -> Iterator[Case]:
    yield Case()
    for point in Point:
        for visit in VISITS:
            for fate in ("crash", "pause"):
                yield Case(crashes=((point, visit, fate),))


def calls() -> Iterator[Case]:
    for number in range(1, CALLS + 1):
        for ending in STORAGE_ENDINGS:
            yield Case(storage=((number, ending),))
    for number in range(1, CHANGES + 1):
        for ending in PROVIDER_ENDINGS:
            yield Case(provider=((number, ending),))


def pairs() -> Iterator[Case]:
    """Every two points, the second one at its next visit after the first one struck."""
    fates = [(point, fate) for point in Point for fate in ("crash", "pause")]
    for first, first_fate in fates:
        for second, second_fate in fates:
            visit = 2 if first is second else 1
            yield Case(crashes=((first, 1, first_fate), (second, visit, second_fate)))


def cases(*, with_pairs: bool) -> list[Case]:
    return [*singles(), *calls(), *(pairs() if with_pairs else ())]


def run_all(*, with_pairs: bool, jobs: int) -> int:
    """Says how many cases failed; prints them."""
    every = cases(with_pairs=with_pairs)
    failed, visits = 0, Counter[Point]()
    for outcome in workers.spread(play, every, jobs=jobs, chunk=8):
        visits.update(outcome.visits)
        if outcome.violations:
            failed += 1
            print(f"{outcome.case}: {outcome.violations[0]}", flush=True)
            print(f"to see it again: nstance-sim exhaustive --only '{outcome.case}'", flush=True)
    print(f"{len(every)} cases, {failed} with violations")
    for point in Point:
        if not visits[point]:
            print(f"never reached: {point.value}")
            failed += 1
    return failed
