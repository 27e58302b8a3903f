"""Decides for each call to storage and to the provider how it ends.

A call succeeds, fails, succeeds but its answer is lost, or is applied long after its caller gave up. The last two find the
most bugs.
"""

import random
from collections.abc import Callable

from nstance.model.ids import InstanceId
from nstance.model.offer import Offer
from nstance.objects import errors as storage
from nstance.objects import memory
from nstance.objects.memory import Fate, Verb
from nstance.providers import errors, memory_offers, port
from nstance.providers.memory_behavior import CHANGES, Call, Life, Outcome
from nstance.sim.loop import Machine
from nstance.sim.setup import Setup

Count = Callable[[str], None]
WRITES = frozenset({Verb.CREATE, Verb.REPLACE, Verb.DELETE})


class _Faults:
    def __init__(self, r: random.Random, setup: Setup, now: Callable[[], float], count: Count) -> None:
        self._r = r
        self._setup = setup
        self._now = now
        self._count = count
        self.stopped = False
        self.brown_until = 0.0
        self.script: list[tuple[int, str]] = []  # (n, ending): how the n-th change ends
        self._changes = 0

    def _next_scripted(self) -> str | None:
        """How the script ends this change."""
        if not self.script:
            return None
        self._changes += 1
        return next((ending for number, ending in self.script if number == self._changes), None)


class StorageFaults(_Faults):
    def __init__(self, r: random.Random, setup: Setup, now: Callable[[], float], count: Count) -> None:
        super().__init__(r, setup, now, count)
        self.cut: dict[str, int] = {}  # machines that cannot reach it, by the number of active cuts
        self.slow = 0.0  # seconds by which each request takes longer

    def faults(self, machine: Machine) -> memory.Faults:
        async def fate(verb: Verb, key: str) -> Fate:
            return self._fate(machine, verb)

        return fate

    def _fate(self, machine: Machine, verb: Verb) -> Fate:
        r = self._r
        self._count(f"request {verb}")
        if self.cut.get(machine.name):
            self._count("storage cut off")
            return Fate(before=5.0, error=storage.UnavailableError("cut off"))
        # A median of 28 ms, a 99th percentile of 140 ms, and rarely a straggler.
        latency = r.lognormvariate(-3.58, 0.7) + (r.uniform(0.5, 2.5) if r.random() < 0.001 else 0.0)
        latency = latency * self._setup.latency + self.slow
        p = 0.0 if self.stopped else self._setup.storage
        if self._now() < self.brown_until:
            latency = latency * 8 + r.uniform(0.0, 0.6)
            p = max(p, 0.15)
        before, after = latency * 0.6, latency * 0.4
        if verb in WRITES and (ending := self._next_scripted()) is not None:
            return self._ending(ending, before, after)
        if p:
            draw = r.random()
            if draw < 3 * p:
                return self._ending(("failed", "lost", "late")[int(draw / p)], before, after)
        if verb is Verb.LIST and not self.stopped and r.random() < self._setup.stale_lists:
            self._count("storage stale listing")
            return Fate(before=before, after=after, stale=r.uniform(0.0, 3.0))
        return Fate(before=before, after=after)

    def _ending(self, ending: str, before: float, after: float) -> Fate:
        self._count(f"storage {ending}")
        match ending:
            case "failed":
                return Fate(before=before, error=storage.UnavailableError("503"))
            case "lost":
                return Fate(before=before, after=after, lost=True)
            case _:
                return Fate(before=before, after=after, late=self._r.uniform(0.1, 8.0))


class ProviderFaults(_Faults):
    """A `providers.memory_behavior.Behavior`."""

    def __init__(self, r: random.Random, setup: Setup, now: Callable[[], float], count: Count) -> None:
        super().__init__(r, setup, now, count)
        self.brown = 0.2  # probability of each of the five bad endings in a brown-out: every call fails
        self.throttled_until = 0.0
        self.full: dict[str, float] = {}  # subnets without free addresses, until when
        self.exhausted: dict[Offer, float] = {}  # patterns of offers without capacity (`memory_offers`), until when
        self.partial_until = 0.0  # listings are incomplete without saying so

    def outcome(self, call: Call, id: InstanceId | None) -> Outcome:
        r, now = self._r, self._now()
        before = r.uniform(0.05, 1.0) if call is Call.CREATE else r.uniform(0.02, 0.2)
        after = r.uniform(0.01, 0.2)
        p = 0.0 if self.stopped else self._setup.provider
        if now < self.brown_until:
            before, p = before * 4, self.brown
        if now < self.throttled_until and r.random() < 0.7:
            self._count("provider throttled")
            return Outcome(
                before=0.02, applied=False, error=errors.ThrottledError("too many calls", delay=r.uniform(0.2, 2))
            )
        if call in CHANGES and (ending := self._next_scripted()) is not None:
            return self._ending(ending, call, before, after)
        if p and (draw := r.random()) < 5 * p:
            return self._ending(("failed", "lost", "unsent", "late", "ignored")[int(draw / p)], call, before, after)
        if call is Call.LIST and now < self.partial_until:
            self._count("provider partial listing")
            return Outcome(before=before, after=after, first=r.choice((0, 0, 1, 2)))
        return Outcome(before=before, after=after)

    def _ending(self, ending: str, call: Call, before: float, after: float) -> Outcome:
        if call not in CHANGES:
            ending = "failed"
        elif ending == "ignored" and call is not Call.DELETE:
            ending = "unsent"
        self._count(f"provider {ending} {call.value}" if call in CHANGES else f"provider {ending} look")
        unknown = errors.UnknownOutcomeError("the answer was lost")
        match ending:
            case "failed":
                return Outcome(before=before, applied=False, error=errors.UnavailableError("the cloud is unavailable"))
            case "lost":
                return Outcome(before=before, after=after, error=unknown)
            case "unsent":
                return Outcome(before=before, after=after, applied=False, error=unknown)
            case "late":
                late = self._r.uniform(0.1, self._r.choice((3.0, 20.0)))
                return Outcome(before=before, after=after, late=late, error=unknown)
            case _:
                return Outcome(before=before, after=after, applied=False)

    def life(self, request: port.CreateRequest) -> Life:
        r, setup = self._r, self._setup
        return Life(
            boot=r.uniform(*setup.boot),
            dying=r.uniform(0.0, setup.dying),
            # Some clouds show no trace of what was deleted: then two minutes pass before an absence is believed.
            linger=0.0 if r.random() < 0.03 else r.uniform(10.0, 40.0),
            get_lag=setup.lag if setup.contradicts else self._lag(),
            list_lag=0.0 if setup.contradicts else self._lag(),
        )

    def _lag(self) -> float:
        """Often none or all of it: otherwise single answers and listings rarely contradict each other."""
        lag = self._setup.lag
        return self._r.choice((0.0, lag, self._r.uniform(0.0, lag))) if lag else 0.0

    def is_full(self, subnet: str) -> bool:
        return self._now() < self.full.get(subnet, 0.0)

    def find_exhausted(self, offer: Offer) -> errors.NoCapacityError | None:
        now = self._now()
        found = (p for p, until in self.exhausted.items() if now < until and memory_offers.is_match(p, offer))
        pattern = next(found, None)
        return memory_offers.no_capacity(pattern) if pattern is not None else None
