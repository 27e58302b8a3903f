"""What an event costs does not grow with the rest of the shard (number 11 of the numbers to reach)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from nstance.core.decide import decide
from nstance.model import events as ev
from nstance.model.decision import Facts, View
from nstance.model.group import Policy
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, State
from unit.core.core_situation import KEY, NOW, fresh_ids, healthy, member, wish


class WholeShard(Mapping[InstanceId, Facts]):
    """The facts of all groups: a decision may look some of them up, but neither copy nor count them."""

    def __init__(self, known: dict[InstanceId, Facts]) -> None:
        self._known = known
        self.asked: list[InstanceId] = []

    def __getitem__(self, id: InstanceId) -> Facts:
        self.asked.append(id)
        return self._known[id]

    def __iter__(self) -> Iterator[InstanceId]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError("a decision went through the facts of the whole shard")


def test_a_decision_looks_only_at_its_own_group() -> None:
    ours = [member("a"), member("b"), member("s", State.STARTING)]
    known = {m.id: healthy() for m in (*ours, member("x"), member("y"))}
    for event in (ev.AgentConnected(ours[0].id), ev.AgentLost(ours[1].id), ev.Woke(), ev.GroupChanged()):
        facts = WholeShard(known)
        view = View(key=KEY, wish=wish(3), members={m.id: m for m in ours}, facts=facts)
        decide(view, [event], now=NOW, policy=Policy(), fresh_ids=fresh_ids())
        assert set(facts.asked) <= {m.id for m in ours}


def test_a_rotation_looks_once_at_those_that_wait_for_their_turn() -> None:
    """After a change of the configuration everybody is out of date: that must not make each event many times as dear."""
    waiting = [replace(member("a"), id=InstanceId(f"web-{n:026}"), infra_hash="old") for n in range(300)]
    taker = replace(member("z", State.STARTING), replaces=waiting[0].id, replaces_for=Cause.DRIFT)
    members = {m.id: m for m in (*waiting, taker)}
    facts = WholeShard({m.id: healthy() for m in waiting})
    view = View(key=KEY, wish=wish(len(waiting)), members=members, facts=facts, listed=True)
    decision = decide(view, [ev.Woke()], now=NOW, policy=Policy(), fresh_ids=fresh_ids())
    assert not decision.changes
    assert len(facts.asked) < len(waiting) + 20
