"""The cost of an event does not grow with the rest of the shard."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from nstance.core.decide import decide
from nstance.model import events as ev
from nstance.model.decision import View
from nstance.model.group import Policy
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Put, State
from nstance.model.observation import Observation
from unit.core.core_situation import KEY, NOW, desired, fresh_ids, healthy, member, observation


class WholeShard(Mapping[InstanceId, Observation]):
    """The observations of all groups: a decision may look some of them up, but neither copy nor count them."""

    def __init__(self, known: dict[InstanceId, Observation]) -> None:
        self._known = known
        self.asked: list[InstanceId] = []

    def __getitem__(self, id: InstanceId) -> Observation:
        self.asked.append(id)
        return self._known[id]

    def __iter__(self) -> Iterator[InstanceId]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError("a decision iterated over the observations of the whole shard")


def test_a_decision_reads_only_its_own_group() -> None:
    ours = [member("a"), member("b"), member("s", State.STARTING)]
    known = {m.id: healthy() for m in (*ours, member("x"), member("y"))}
    for event in (ev.AgentConnected(ours[0].id), ev.AgentLost(ours[1].id), ev.TimerFired(), ev.GroupChanged()):
        observed = WholeShard(known)
        view = View(key=KEY, desired=desired(3), members={m.id: m for m in ours}, observations=observed)
        decide(view, [event], now=NOW, policy=Policy(), fresh_ids=fresh_ids())
        assert set(observed.asked) <= {m.id for m in ours}


def test_a_rotation_reads_waiting_members_once() -> None:
    """After a change of the configuration all members are outdated, which must not make each event much more expensive."""
    waiting = [replace(member("a"), id=InstanceId(f"web-{n:026}"), infra_hash="old") for n in range(300)]
    taker = replace(member("z", State.STARTING), replaces=waiting[0].id, replaces_for=Cause.DRIFT)
    members = {m.id: m for m in (*waiting, taker)}
    observed = WholeShard({m.id: healthy() for m in waiting})
    view = View(key=KEY, desired=desired(len(waiting)), members=members, observations=observed, listed=True)
    decision = decide(view, [ev.TimerFired()], now=NOW, policy=Policy(), fresh_ids=fresh_ids())
    assert not decision.changes
    assert len(observed.asked) < len(waiting) + 20


def test_starting_and_retained_members_are_read_once() -> None:
    """A large group starts, or was replaced lately: each event is about one member, and each step skips the others."""
    coming = [replace(member("a", State.STARTING), id=InstanceId(f"web-{n:026}")) for n in range(200)]
    asked = [replace(member("p", State.PENDING), id=InstanceId(f"web-1{n:025}")) for n in range(200)]
    kept = [replace(member("d", State.DELETED), id=InstanceId(f"web-2{n:025}")) for n in range(200)]
    members = {m.id: m for m in (*coming, *asked, *kept)}
    observed = WholeShard(
        {m.id: observation(last_seen=NOW, creating=m.state is State.PENDING) for m in members.values()}
    )
    view = View(key=KEY, desired=desired(400), members=members, observations=observed, listed=True)
    decision = decide(view, [ev.TimerFired()], now=NOW, policy=Policy(), fresh_ids=fresh_ids())
    assert not decision.changes
    assert not decision.effects
    assert decision.wake_at == NOW - 100.0 + desired(1).registration_timeout
    assert len(observed.asked) < len(members)


def test_subnets_are_used_in_turn_without_recounting_for_each_instance() -> None:
    group = desired(900, subnets=("a", "b", "c"))
    kept = [replace(member("a"), id=InstanceId(f"web-{n:026}"), subnet="a") for n in range(100)]
    leaving = [replace(member("x", State.DELETING), id=InstanceId(f"web-2{n:025}"), subnet="b") for n in range(50)]
    members = {m.id: m for m in (*kept, *leaving)}
    view = View(key=KEY, desired=group, members=members, observations={m.id: healthy() for m in kept}, listed=True)
    decision = decide(view, [ev.TimerFired()], now=NOW, policy=Policy(), fresh_ids=fresh_ids())
    made = Counter(c.instance.subnet for c in decision.changes if isinstance(c, Put) and c.instance.id not in members)
    assert made == {"a": 200, "b": 300, "c": 300}
