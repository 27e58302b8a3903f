"""F45 with a whole shard in virtual time: a provider that takes 20 calls of a kind a second.

Creates and deletes have budgets of their own, as with clouds that limit each kind of call.
"""

from collections import defaultdict

import pytest

from nstance.model.ids import InstanceId
from nstance.providers.behaviour import Call, Outcome
from nstance.providers.errors import Throttled
from nstance.sim.setup import Setup
from nstance.sim.wishes import GroupWish, Wishes
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
            return Outcome(before=0.02, applied=False, error=Throttled("RequestLimitExceeded", delay=hint))
        tokens[call] -= 1
        return Outcome(before=0.05)

    w.provider_weather.outcome = outcome  # type: ignore[method-assign]


def group(size: int) -> GroupWish:
    return GroupWish(size=size, drain=0.0)


@pytest.mark.parametrize("hint", [0.0, 1.0])
def test_f45_a_hundred_creates_at_twenty_a_second(hint: float) -> None:
    start = Wishes(groups={"web": group(0), "old": group(DELETES)})
    with world(1, Setup(servers=1, operator=False, snapshots=False, wishes=start)) as w:
        w.begin()
        w.advance(30.0)
        assert len(w.cloud.vms()) == DELETES
        throttle(w, hint)
        made = len(w.cloud.vms())
        began = w.now
        w.do(w.tell, Wishes(groups={"web": group(CREATES), "old": group(DELETES)}))
        w.advance(0.5)
        w.do(w.tell, Wishes(groups={"web": group(CREATES), "old": group(0)}))
        while sum(vm.group == "old" and vm.status.value != "running" for vm in w.cloud.vms()) < DELETES:
            w.advance(0.1)
            assert w.now < began + 1.5, "throttled creates hold deletes up"
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
