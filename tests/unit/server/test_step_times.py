"""How long one step of a rollout takes."""

from dataclasses import replace

from nstance.model.ids import GroupKey, GroupName
from nstance.model.instance import Instance, Put, State
from nstance.server.leader.step_times import StepTimes
from nstance.server.state.commits import Committed
from support.hand_clock import HandClock
from unit.core.core_situation import KEY, member

OTHER = GroupKey(KEY.tenant, GroupName("other"))


def test_a_new_leader_estimates_from_records_and_other_groups() -> None:
    """Before, nothing was known of a group until one of its own instances had booted and another was deleted."""
    clock = HandClock()
    times = StepTimes(clock)
    here = [member("a", created=100.0, ready_at=130.0), member("b", created=100.0, on_demand=True, ready_at=101.0)]
    assert times.step_seconds(KEY, here) is None
    _delete(times, clock, replace(member("c"), group=OTHER.name), seconds=5.0)
    assert times.step_seconds(KEY, here) == 35.0
    assert times.step_seconds(KEY, []) is None
    _delete(times, clock, member("d"), seconds=9.0)
    assert times.step_seconds(KEY, here) == 39.0


def _delete(times: StepTimes, clock: HandClock, instance: Instance, *, seconds: float) -> None:
    leaving = replace(instance, state=State.DELETING)
    _commit(times, instance, leaving)
    clock.now += seconds
    _commit(times, leaving, replace(leaving, state=State.DELETED))


def _commit(times: StepTimes, before: Instance, after: Instance) -> None:
    times.observe(Committed(after.key, (Put(after),), (), {before.id: before}))
