"""How long the steps of a rollout take: from intent to ready, and from draining to deleted.

Both are measured in this term. Until then, boots are those of the records, and deletions those of other groups."""

from collections import deque
from collections.abc import Iterable
from itertools import chain
from statistics import median

from nstance.clock import Clock
from nstance.model.ids import GroupKey, InstanceId
from nstance.model.instance import Instance, Put, State
from nstance.server.state.commits import Committed

MAX_SAMPLES = 20  # of each kind, for each group


class StepTimes:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boots: dict[GroupKey, deque[float]] = {}
        self._deletions: dict[GroupKey, deque[float]] = {}
        self._leaving: dict[InstanceId, float] = {}  # and since when

    def observe(self, committed: Committed) -> None:
        for change in committed.changes:
            if isinstance(change, Put):
                self._measure(change.instance, committed.before.get(change.instance.id))
            else:
                self._leaving.pop(change.id, None)

    def _measure(self, now: Instance, before: Instance | None) -> None:
        if now.on_demand or before is None:
            return
        if now.ready_at is not None and before.ready_at is None:
            _add(self._boots, now.key, now.ready_at - now.created)
        if before.state is State.RUNNING and now.state in (State.DRAINING, State.DELETING):
            self._leaving[now.id] = self._clock.steady()
        elif now.state is State.RUNNING:
            self._leaving.pop(now.id, None)
        elif now.state is State.DELETED and (since := self._leaving.pop(now.id, None)) is not None:
            _add(self._deletions, now.key, self._clock.steady() - since)

    def step_seconds(self, key: GroupKey, members: Iterable[Instance]) -> float | None:
        """How long one replacement takes; None if not enough was measured. `members`: of the group."""
        boots = self._boots.get(key) or [
            m.ready_at - m.created for m in members if m.ready_at is not None and not m.on_demand
        ]
        deletions = self._deletions.get(key) or [*chain(*self._deletions.values())]
        return median(boots) + median(deletions) if boots and deletions else None

    def keep(self, keys: set[GroupKey]) -> None:
        """Forget all groups but these."""
        for samples in (self._boots, self._deletions):
            for key in [key for key in samples if key not in keys]:
                del samples[key]


def _add(samples: dict[GroupKey, deque[float]], key: GroupKey, seconds: float) -> None:
    samples.setdefault(key, deque(maxlen=MAX_SAMPLES)).append(seconds)
