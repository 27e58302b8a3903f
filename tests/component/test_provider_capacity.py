"""Lack of capacity with a whole shard in virtual time: a cloud without capacity, or with a quota, is asked with patience."""

from nstance.model.ids import InstanceId
from nstance.model.instance import State
from nstance.providers.errors import PermanentError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.sim.desired_groups import SUBNETS, DesiredGroup, DesiredGroups
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

HOUR = 3600.0


def setup(size: int) -> Setup:
    desired_groups = DesiredGroups(groups={"web": DesiredGroup(size=size, drain=0.0)})
    return Setup(servers=1, operator=False, snapshots=False, desired_groups=desired_groups)


def ready(w: World) -> int:
    return sum(record.state is State.RUNNING for record in w.auditor.records.values())


def test_a_full_subnet_is_left_for_the_next_one_at_once() -> None:
    with world(1, setup(4)) as w:
        w.begin()
        while not w.leader():
            w.advance(0.01)
        w.advance(0.3)  # the leader has learnt that there is room
        w.provider_faults.full[SUBNETS[0]] = 10 * HOUR
        w.advance(20.0)
        assert ready(w) == 4
        assert {record.subnet for record in w.auditor.records.values() if record.state is State.RUNNING} == {SUBNETS[1]}
        assert w.counts["decided create-failed"]
        assert w.counts["calls create"] <= 8  # it is remembered: not each one is tried there first
        assert not w.violations, w.violations[0]


def test_no_capacity_anywhere_is_no_hot_loop_and_heals_by_itself() -> None:
    with world(1, setup(4)) as w:
        w.provider_faults.full.update(dict.fromkeys(SUBNETS, 2 * HOUR))
        w.begin()
        w.advance(2 * HOUR - 60.0)
        assert ready(w) == 0
        assert w.counts["decided back-off"]
        assert w.counts["calls create"] < 4 * len(SUBNETS) * 20  # at ten minutes' distance, for two hours
        leader = w.leader()
        assert leader is not None
        assert leader.lead is not None
        (key,) = leader.lead.shard.desired_groups
        assert "capacity" in leader.lead.shard.trend(key).last_error
        w.advance(700.0)
        assert ready(w) == 4
        assert leader.lead.shard.trend(key).last_error == ""
        assert not w.violations, w.violations[0]


def test_a_quota_is_no_hot_loop_and_heals_by_itself() -> None:
    with world(1, setup(3)) as w:
        usual = w.provider_faults.outcome

        def over_quota(call: Call, id: InstanceId | None) -> Outcome:
            if call is Call.CREATE and w.now < HOUR:
                return Outcome(before=0.05, applied=False, error=PermanentError("VcpuLimitExceeded"))
            return usual(call, id)

        w.provider_faults.outcome = over_quota  # type: ignore[method-assign]
        w.begin()
        w.advance(HOUR)
        assert ready(w) == 0
        assert w.counts["decided back-off"]
        assert w.counts["calls create"] < 3 * 15
        w.advance(700.0)
        assert ready(w) == 3
        assert not w.violations, w.violations[0]
