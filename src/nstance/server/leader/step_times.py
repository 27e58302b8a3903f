"""How long the steps of a rollout take here, as measured in this term: from the intent to ready, and from leaving to gone."""

from collections import deque
from statistics import median

from nstance.clock import Clock
from nstance.model.ids import GroupKey, InstanceId
from nstance.model.instance import Instance, Put, State
from nstance.server.state.commits import Committed

KEPT = 20  # samples of each kind, for each group


class StepTimes:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boots: dict[GroupKey, deque[float]] = {}
        self._leaves: dict[GroupKey, deque[float]] = {}
        self._leaving: dict[InstanceId, float] = {}  # since when

    def observe(self, committed: Committed) -> None:
        for change in committed.changes:
            if isinstance(change, Put):
                self._see(change.instance, committed.before.get(change.instance.id))
            else:
                self._leaving.pop(change.id, None)

    def _see(self, now: Instance, before: Instance | None) -> None:
        if now.on_demand or before is None:
            return
        if now.ready_at is not None and before.ready_at is None:
            _add(self._boots, now.key, now.ready_at - now.created)
        if before.state is State.RUNNING and now.state in (State.DRAINING, State.DELETING):
            self._leaving[now.id] = self._clock.steady()
        elif now.state is State.RUNNING:
            self._leaving.pop(now.id, None)
        elif now.state is State.DELETED and (since := self._leaving.pop(now.id, None)) is not None:
            _add(self._leaves, now.key, self._clock.steady() - since)

    def step_seconds(self, key: GroupKey) -> float | None:
        """Of one replacement; None if not enough was measured."""
        boots, leaves = self._boots.get(key), self._leaves.get(key)
        return median(boots) + median(leaves) if boots and leaves else None

    def forget(self, keys: set[GroupKey]) -> None:
        """All groups but these are gone."""
        for samples in (self._boots, self._leaves):
            for key in [key for key in samples if key not in keys]:
                del samples[key]


def _add(samples: dict[GroupKey, deque[float]], key: GroupKey, seconds: float) -> None:
    samples.setdefault(key, deque(maxlen=KEPT)).append(seconds)
