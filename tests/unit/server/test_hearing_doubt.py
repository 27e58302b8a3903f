"""F59: of a cut of just over a third, those that spoke last are counted before the first one is suspect."""

from nstance.model.decision import Facts
from nstance.model.ids import DEFAULT_TENANT, GroupName, InstanceId
from nstance.model.instance import Instance, State
from nstance.server.hearing import JUDGE_EVERY, Hearing
from support.hand_clock import HandClock

SUSPECT_AFTER = 10.0


def a_fleet(silent_for: list[float]) -> tuple[HandClock, Hearing]:
    """Connected agents, and for how long each has said nothing. They were all asked after five seconds."""
    clock = HandClock()
    ids = [InstanceId(f"abc-{number}") for number in range(len(silent_for))]
    heard = {id: clock.now - seconds for id, seconds in zip(ids, silent_for, strict=True)}
    instances = {
        id: Instance(id=id, tenant=DEFAULT_TENANT, group=GroupName("g"), state=State.RUNNING, created=0.0) for id in ids
    }
    clock.now -= 100.0
    hearing = Hearing(
        instances, {id: Facts(connected=True, heard=at) for id, at in heard.items()}, clock=clock, heard=heard.get
    )
    hearing._awaited.clear()
    clock.now += 100.0
    return clock, hearing


def test_those_that_were_asked_and_had_no_time_to_answer_hold_the_first_suspicion() -> None:
    clock, hearing = a_fleet([10.0, 6.0, 5.6, 5.1] + [3.0] * 6)
    assert hearing.judge(clock.now, SUSPECT_AFTER, quiet=True) is None
    assert (hearing.mass_silence, hearing.doubt) == (False, True)
    clock.now += 1.5
    assert (hearing.judge(clock.now, SUSPECT_AFTER, quiet=True) or "").startswith("4 of 10")
    assert (hearing.mass_silence, hearing.doubt) == (True, False)


def test_the_doubt_ends_when_they_answer() -> None:
    clock, hearing = a_fleet([10.0, 5.1, 5.1, 5.1] + [3.0] * 6)
    hearing.judge(clock.now, SUSPECT_AFTER, quiet=True)
    assert hearing.doubt
    for number in (1, 2, 3):
        hearing._facts[InstanceId(f"abc-{number}")] = Facts(connected=True, heard=clock.now)
    clock.now += JUDGE_EVERY
    assert hearing.judge(clock.now, SUSPECT_AFTER, quiet=True) is None
    assert not hearing.doubt
    assert not hearing.mass_silence


def test_one_that_is_silent_alone_is_doubted_by_nobody() -> None:
    clock, hearing = a_fleet([10.0] + [4.9] * 9)
    hearing.judge(clock.now, SUSPECT_AFTER, quiet=True)
    assert not hearing.doubt
