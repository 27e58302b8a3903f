"""Throttling with a whole shard in virtual time: a provider that takes 20 calls of a kind a second.

Creates and deletes have budgets of their own, as with clouds that limit each kind of call.
"""

from collections import defaultdict

import pytest

from nstance.model.ids import InstanceId
from nstance.model.instance import State
from nstance.providers.errors import ThrottledError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.sim.desired_groups import DesiredGroup, DesiredGroups
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

RATE = 20.0
CREATES, DELETES = 100, 10


def throttle(w: World, hint: float) -> None:
    tokens: dict[Call, float] = defaultdict(lambda: RATE)
    at: dict[Call, float] = defaultdict(lambda: w.now)

    def outcome(call: Call, id: InstanceId | None) -> Outcome:
        tokens[call] = min(RATE, tokens[call] + (w.now - at[call]) * RATE)
        at[call] = w.now
        if tokens[call] < 1:
            w.count(f"refused {call.value}")
            return Outcome(before=0.02, applied=False, error=ThrottledError("RequestLimitExceeded", delay=hint))
        tokens[call] -= 1
        return Outcome(before=0.05)

    w.provider_faults.outcome = outcome  # type: ignore[method-assign]


def group(size: int) -> DesiredGroup:
    return DesiredGroup(size=size, drain=0.0)


@pytest.mark.parametrize("hint", [0.0, 1.0])
def test_a_hundred_creates_at_twenty_a_second(hint: float) -> None:
    start = DesiredGroups(groups={"web": group(0), "old": group(DELETES)})
    with world(1, Setup(servers=1, operator=False, snapshots=False, desired_groups=start)) as w:
        w.begin()
        w.advance(30.0)
        assert len(w.cloud.vms()) == DELETES
        throttle(w, hint)
        made = len(w.cloud.vms())
        began = w.now
        w.do(w.configure, DesiredGroups(groups={"web": group(CREATES), "old": group(DELETES)}))
        w.advance(0.5)
        w.do(w.configure, DesiredGroups(groups={"web": group(CREATES), "old": group(0)}))
        while sum(vm.group == "old" and vm.status.value != "running" for vm in w.cloud.vms()) < DELETES:
            w.advance(0.1)
            # All calls bear the provider's hint together; but deletes do not wait behind all creates.
            assert w.now < began + 2.0 + 2 * hint, "throttled creates hold deletes up"
        while len(w.cloud.vms()) < made + CREATES:
            w.advance(0.1)
            assert w.now < began + 300.0
        ideal = (CREATES - RATE) / RATE
        assert w.now - began < 2 * ideal + hint
        assert w.counts["refused create"]
        assert w.counts["decided throttled"] == 1
        w.advance(180.0)
        assert w.counts["decided throttled"] == 2  # it says as well that it is over
        assert not w.violations, w.violations[0]


def refuse(w: World, kind: Call, *, until: float, delay: float) -> None:
    usual = w.provider_faults.outcome

    def outcome(call: Call, id: InstanceId | None) -> Outcome:
        if call is kind and w.now < until:
            return Outcome(before=0.02, applied=False, error=ThrottledError("RequestLimitExceeded", delay=delay))
        return usual(call, id)

    w.provider_faults.outcome = outcome  # type: ignore[method-assign]


def test_a_listing_that_is_refused_slows_creates_down_too() -> None:
    """The provider as a whole is given the time that it asks for."""
    start = DesiredGroups(groups={"web": group(0)})
    with world(1, Setup(servers=1, operator=False, snapshots=False, desired_groups=start)) as w:
        refuse(w, Call.LIST, until=3.0, delay=20.0)
        w.begin()
        while not w.counts["decided throttled"]:
            w.advance(0.1)
            assert w.now < 10.0
        refused = w.now
        w.do(w.configure, DesiredGroups(groups={"web": group(5)}))
        w.advance(refused + 18.0 - w.now)
        assert not w.counts["calls create"]
        w.advance(30.0)
        assert len(w.cloud.vms()) == 5
        assert not w.violations, w.violations[0]


def test_creates_that_nobody_wants_any_more_are_not_sent() -> None:
    """Scaled up, throttled, scaled down: what waited is not made, and its record ends as never asked for."""
    start = DesiredGroups(groups={"web": group(0)})
    with world(1, Setup(servers=1, operator=False, snapshots=False, desired_groups=start)) as w:
        w.begin()
        w.advance(10.0)
        refuse(w, Call.CREATE, until=w.now + 5.0, delay=20.0)
        w.do(w.configure, DesiredGroups(groups={"web": group(100)}))
        w.advance(4.0)
        asked = w.counts["calls create"]
        assert 0 < asked < 100
        w.do(w.configure, DesiredGroups(groups={"web": group(2)}))
        w.advance(120.0)
        assert w.counts["calls create"] <= asked + 2
        assert len(w.cloud.vms()) == 2
        records = w.auditor.records.values()
        assert sum(record.state is State.RUNNING for record in records) == 2
        assert sum(record.state is State.DELETED for record in records) >= 98 - asked
        assert w.counts["calls delete"] <= asked  # nobody deletes what was never asked for
        w.advance(300.0)  # of those that were asked for and refused, it takes a while until their absence is believed
        assert sum(record.state is State.DELETED for record in w.auditor.records.values()) == 98
        assert not w.violations, w.violations[0]
