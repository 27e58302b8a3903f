"""A decision while it is being made.

The steps of a decision change the draft; from outside, `decide` stays a pure function. All changes of records and facts
go through here, so that the transition table is checked in one place. Effects are put in order at the end: creations
first, because replacement comes first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nstance.model.decision import (
    CheckVm,
    Code,
    CreateVm,
    Decision,
    DeleteVm,
    Effect,
    Facts,
    Reason,
    Refused,
    Trend,
    View,
)
from nstance.model.events import VmState
from nstance.model.group import Group, Policy
from nstance.model.ids import InstanceId
from nstance.model.instance import TRANSITIONS, Change, Instance, Put, Remove, State

_ORDER: Mapping[type[Effect], int] = {CreateVm: 0, CheckVm: 1, DeleteVm: 2}
NOT_RUNNING = frozenset({VmState.DOWN, VmState.DELETED})


class Draft:
    def __init__(self, view: View, *, now: float, policy: Policy, fresh_ids: Iterator[InstanceId]) -> None:
        self.view = view
        self.now = now
        self.policy = policy
        self.trend: Trend = view.trend
        self._fresh_ids = fresh_ids
        self.members: dict[InstanceId, Instance] = dict(view.members)
        self._facts: dict[InstanceId, Facts] = {}
        self._changes: dict[InstanceId, Change] = {}
        self._effects: list[Effect] = []
        self._reasons: list[Reason] = []
        self._refusals: dict[int, Refused] = {}
        self._wake: float | None = None

    @property
    def wish(self) -> Group | None:
        return self.view.wish

    @property
    def size(self) -> int:
        return self.wish.size if self.wish is not None else 0

    def capacity(self) -> list[Instance]:
        """What counts towards the size, oldest first."""
        return sorted((m for m in self.members.values() if m.counts), key=_by_id)

    def facts(self, id: InstanceId) -> Facts:
        known = self._facts.get(id)
        if known is None:
            known = self.view.facts.get(id)
        # A record that this leader has only read about: listening began with the term.
        return known if known is not None else Facts(heard=self.view.listening_since)

    def learn(self, id: InstanceId, **fields: Any) -> None:
        self._facts[id] = replace(self.facts(id), **fields)

    def change(self, instance: Instance, **fields: Any) -> Instance:
        """Change a record. Anything that the transition table does not allow is a bug."""
        after = replace(instance, **fields)
        if after.state is not instance.state:
            assert after.state in TRANSITIONS[instance.state], f"{instance.id}: {instance.state} -> {after.state}"
        self.put(after)
        return after

    def put(self, instance: Instance) -> None:
        self.members[instance.id] = instance
        self._changes[instance.id] = Put(instance)

    def remove(self, id: InstanceId) -> None:
        del self.members[id]
        self._changes[id] = Remove(id)

    def fresh_id(self) -> InstanceId:
        return next(self._fresh_ids)

    def effect(self, effect: Effect) -> None:
        self._effects.append(effect)

    def reason(self, code: Code, message: str, instance: InstanceId | None = None) -> None:
        self._reasons.append(Reason(code, message, instance))

    def refuse(self, position: int, refusal: Refused) -> None:
        self._refusals[position] = refusal

    def wake(self, at: float) -> None:
        """Look again at that time, or sooner."""
        if self._wake is None or at < self._wake:
            self._wake = at

    def not_running(self, instance: Instance) -> bool:
        """The provider has made it certain that this VM does not run."""
        facts = self.facts(instance.id)
        return facts.vm in NOT_RUNNING or (facts.vm is VmState.ABSENT and self.absence_is_certain(instance))

    def absence_is_certain(self, instance: Instance) -> bool:
        """Listings lag behind creation: before a VM was seen once, only misses over two minutes count."""
        since = self.facts(instance.id).absent_since
        if since is None:
            return False
        return instance.seen or self.now >= since + ABSENCE_IS_TRUE_AFTER

    def decision(self) -> Decision:
        return Decision(
            changes=tuple(self._changes.values()),
            effects=tuple(sorted(self._effects, key=lambda e: _ORDER[type(e)])),
            reasons=tuple(self._reasons),
            facts=self._facts,
            trend=self.trend,
            refusals=self._refusals,
            wake_at=self._wake,
        )


ABSENCE_IS_TRUE_AFTER = 120.0


def drifted(instance: Instance, wish: Group | None) -> bool:
    return bool(wish and wish.infra_hash and instance.infra_hash and instance.infra_hash != wish.infra_hash)


def is_ended(instance: Instance) -> bool:
    return instance.state in (State.DELETED, State.FAILED)


def _by_id(instance: Instance) -> InstanceId:
    return instance.id
