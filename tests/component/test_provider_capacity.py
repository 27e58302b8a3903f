"""Lack of capacity with a whole shard in virtual time: a cloud without capacity, or with a quota, is asked with patience."""

from collections import Counter
from dataclasses import replace

import pytest

from nstance.model.ids import InstanceId
from nstance.model.instance import State
from nstance.model.offer import Offer
from nstance.providers.errors import PermanentError, ProviderError, ThrottledError, UnavailableError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.providers.memory_offers import ANY
from nstance.sim.desired_groups import SUBNETS, DesiredGroup, DesiredGroups
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

HOUR = 3600.0


def setup(size: int) -> Setup:
    desired_groups = DesiredGroups(groups={"web": DesiredGroup(size=size, drain=0.0)}, capacity_retry=60.0)
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
        assert w.counts["decided blocked"]
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


SPOT_FIRST = DesiredGroup(size=4, drain=0.0, instance_types=("small", "large"), markets=("spot", "on-demand"))


def offers(w: World) -> Counter[tuple[str, str]]:
    running = [record for record in w.auditor.records.values() if record.state is State.RUNNING]
    return Counter((record.market, record.instance_type) for record in running)


def settled(w: World, wanted: dict[tuple[str, str], int], *, within: float) -> bool:
    until = w.now + within
    while offers(w) != wanted and w.now < until:
        w.advance(1.0)
    return offers(w) == wanted


@pytest.mark.parametrize("prefer", ["loose", "strict"])
def test_spot_runs_out_and_comes_back(prefer: str) -> None:
    """All instances are on demand then. Only a group that insists on spot returns to it."""
    groups = {"web": replace(SPOT_FIRST, prefer=prefer), "db": replace(SPOT_FIRST, size=1, prefer=prefer)}
    desired_groups = DesiredGroups(groups=groups, capacity_retry=20.0)
    with world(1, Setup(servers=1, operator=False, desired_groups=desired_groups)) as w:
        w.provider_faults.exhausted[Offer("spot", ANY, ANY)] = 60.0
        w.begin()
        assert settled(w, {("on-demand", "small"): 5}, within=40.0)
        assert w.now < 20.0  # the fallback does not wait
        refused = w.counts["refused market"]
        assert refused <= 5  # the two groups share what they learn; five calls may have been sent together
        leader = w.leader()
        assert leader is not None
        assert leader.lead is not None
        assert leader.lead.shard.offers.count() == 1
        wanted = {("spot", "small"): 5} if prefer == "strict" else {("on-demand", "small"): 5}
        w.advance(60.0 - w.now)
        assert w.counts["left preferred-offer"] == 0
        assert settled(w, wanted, within=300.0)
        assert w.counts["left preferred-offer"] == (5 if prefer == "strict" else 0)
        assert not w.violations, w.violations[0]


def test_one_offer_is_ruled_out_and_its_neighbors_are_not() -> None:
    desired_groups = DesiredGroups(groups={"web": SPOT_FIRST}, capacity_retry=600.0)
    with world(1, Setup(servers=1, operator=False, desired_groups=desired_groups)) as w:
        w.provider_faults.exhausted[Offer("spot", "small", SUBNETS[0])] = HOUR
        w.begin()
        assert settled(w, {("spot", "small"): 4}, within=60.0)
        assert {record.subnet for record in w.auditor.records.values() if record.counts} == {SUBNETS[1]}
        w.provider_faults.exhausted[Offer("spot", "small", SUBNETS[1])] = HOUR
        w.do(w.cloud.destroy, next(iter(w.auditor.records)))
        assert settled(w, {("spot", "small"): 3, ("spot", "large"): 1}, within=60.0)
        assert not w.violations, w.violations[0]


@pytest.mark.parametrize(
    ("error", "place"),
    [
        pytest.param(UnavailableError("503"), SUBNETS[1], id="a zone whose API fails is left"),
        pytest.param(ThrottledError("slow down", delay=1.0), SUBNETS[0], id="throttling is waited for"),
    ],
)
def test_server_errors_count_against_an_offer_and_throttling_does_not(error: ProviderError, place: str) -> None:
    desired_groups = DesiredGroups(groups={"web": DesiredGroup(size=1, drain=0.0)}, capacity_retry=600.0)
    with world(1, Setup(servers=1, operator=False, desired_groups=desired_groups)) as w:
        usual = w.provider_faults.outcome

        def failing(call: Call, id: InstanceId | None) -> Outcome:
            record = w.auditor.records.get(id) if id is not None else None
            if call is Call.CREATE and record is not None and record.subnet == SUBNETS[0] and w.now < 25.0:
                return Outcome(before=0.05, applied=False, error=error)
            return usual(call, id)

        w.provider_faults.outcome = failing  # type: ignore[method-assign]
        w.begin()
        w.advance(40.0)
        assert [r.subnet for r in w.auditor.records.values() if r.state is State.RUNNING] == [place]
        assert not w.violations, w.violations[0]


def revisions(w: World) -> Counter[str]:
    return Counter(record.instance_type for record in w.auditor.records.values() if record.state is State.RUNNING)


@pytest.mark.parametrize("surge", [1, 0])
def test_a_lost_instance_is_replaced_during_a_rollout_to_a_type_without_capacity(surge: int) -> None:
    """By the revision before. Once there is capacity, it is rotated like the others."""
    desired = DesiredGroup(size=3, drain=0.0, instance_types=("small",), max_surge=surge, max_unavailable=1 - surge)
    later = DesiredGroups(groups={"web": replace(desired, instance_types=("large",))}, capacity_retry=20.0)
    with world(1, Setup(servers=1, operator=False, desired_groups=replace(later, groups={"web": desired}))) as w:
        w.begin()
        w.advance(12.0)
        assert revisions(w) == {"small": 3}
        w.provider_faults.exhausted[Offer(ANY, "large", ANY)] = 120.0
        w.configure(later)
        w.advance(20.0)
        left = 3 if surge else 2  # removed first, as `max_unavailable` allows
        for _ in range(2):
            w.do(w.cloud.destroy, next(i.id for i in w.auditor.records.values() if i.state is State.RUNNING))
            w.advance(12.0)
            assert revisions(w) == {"small": left}
        w.advance(120.0 - w.now)
        assert revisions(w) == {"small": left}
        assert sum(record.instance_type == "small" for record in w.auditor.records.values()) == 5  # none in turn
        w.advance(200.0)
        assert revisions(w) == {"large": 3}
        assert not w.violations, w.violations[0]
