"""Of a cut of just over a third, those that spoke last are counted before the first one is suspect."""

from nstance.model.ids import DEFAULT_TENANT, GroupName, InstanceId
from nstance.model.instance import Instance, State
from nstance.model.observation import AgentObservation, Observation
from nstance.server.liveness.agent_liveness import JUDGE_EVERY, AgentLiveness
from nstance.server.state.shard_state import ShardState
from support.hand_clock import HandClock

SUSPECT_AFTER = 10.0


def a_fleet(silent_for: list[float]) -> tuple[HandClock, AgentLiveness]:
    """Connected agents, and for how long each has said nothing. They were all asked after five seconds."""
    clock = HandClock()
    ids = [InstanceId(f"abc-{number}") for number in range(len(silent_for))]
    last_seen = {id: clock.now - seconds for id, seconds in zip(ids, silent_for, strict=True)}
    instances = {
        id: Instance(id=id, tenant=DEFAULT_TENANT, group=GroupName("g"), state=State.RUNNING, created=0.0) for id in ids
    }
    clock.now -= 100.0
    fleet = ShardState(instances, {}, {})
    fleet.observe({id: Observation(AgentObservation(connected=True, last_seen=at)) for id, at in last_seen.items()})
    liveness = AgentLiveness(fleet, clock=clock, last_seen=last_seen.get)
    liveness._awaited.clear()
    clock.now += 100.0
    return clock, liveness


def test_those_that_were_asked_and_had_no_time_to_answer_hold_the_first_suspicion() -> None:
    clock, liveness = a_fleet([10.0, 6.0, 5.6, 5.1] + [3.0] * 6)
    assert liveness.judge(clock.now, SUSPECT_AFTER, quiet=True) is None
    assert (liveness.mass_silence, liveness.doubt) == (False, True)
    clock.now += 1.5
    assert (liveness.judge(clock.now, SUSPECT_AFTER, quiet=True) or "").startswith("4 of 10")
    assert (liveness.mass_silence, liveness.doubt) == (True, False)


def test_the_doubt_ends_when_they_answer() -> None:
    clock, liveness = a_fleet([10.0, 5.1, 5.1, 5.1] + [3.0] * 6)
    liveness.judge(clock.now, SUSPECT_AFTER, quiet=True)
    assert liveness.doubt
    for number in (1, 2, 3):
        liveness._fleet.set_last_seen(InstanceId(f"abc-{number}"), clock.now)
    clock.now += JUDGE_EVERY
    assert liveness.judge(clock.now, SUSPECT_AFTER, quiet=True) is None
    assert not liveness.doubt
    assert not liveness.mass_silence


def test_one_that_is_silent_alone_is_doubted_by_nobody() -> None:
    clock, liveness = a_fleet([10.0] + [4.9] * 9)
    liveness.judge(clock.now, SUSPECT_AFTER, quiet=True)
    assert not liveness.doubt
