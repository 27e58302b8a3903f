"""Mass silence is for agents that may come back. One whose certificate ran out while no server was there never will."""

import pytest

from nstance.core.liveness import CLOCK_SKEW_SECONDS, RECONNECT_MIN_SECONDS
from nstance.model.ids import DEFAULT_TENANT, GroupName, InstanceId
from nstance.model.instance import Instance, State
from nstance.server.liveness.agent_liveness import AgentLiveness
from nstance.server.state.shard_state import ShardState
from support.hand_clock import HandClock

NOW = 1_000_000.0


class TwoClocks(HandClock):
    """The wall clock may be off; what ages are counted by is not."""

    wall_ahead = 0.0

    def wall(self) -> float:
        return self.now + self.wall_ahead


def a_new_leader(expires: list[float | None], *, wall_ahead: float = 0.0) -> str | None:
    """What it says once everybody had the time to come back, and nobody did."""
    clock = TwoClocks(NOW)
    clock.wall_ahead = wall_ahead
    instances = {
        InstanceId(f"abc-{number}"): Instance(
            id=InstanceId(f"abc-{number}"),
            tenant=DEFAULT_TENANT,
            group=GroupName("g"),
            state=State.RUNNING,
            created=0.0,
            certificate_expires=at,
        )
        for number, at in enumerate(expires)
    }
    liveness = AgentLiveness(ShardState(instances, {}, {}), clock=clock, last_seen=lambda id: None)
    clock.now += 2 * RECONNECT_MIN_SECONDS
    return liveness.judge(clock.now, 10.0, quiet=False)


OVER = NOW - 3600.0
LATER = NOW + 3600.0


@pytest.mark.parametrize(
    ("expires", "says"),
    [
        pytest.param([LATER] * 4, "4 of 4", id="all may return"),
        pytest.param([None] * 4, "4 of 4", id="nobody knows"),
        pytest.param([NOW + 1 - CLOCK_SKEW_SECONDS / 2] * 4, "4 of 4", id="clocks differ a little"),
        pytest.param([LATER] * 3 + [OVER] * 3, "3 of 3", id="some may"),
    ],
)
def test_those_that_may_return_are_waited_for(expires: list[float | None], says: str) -> None:
    assert (a_new_leader(expires) or "").startswith(says)


def test_those_that_cannot_return_are_replaced_like_any_that_fell_silent() -> None:
    """I4: else a shard whose servers were away for longer than certificates live would never heal."""
    assert a_new_leader([OVER] * 4) is None


def test_a_wrong_wall_clock_ends_no_certificate() -> None:
    assert a_new_leader([LATER] * 4, wall_ahead=10 * 86_400.0) is not None
    assert a_new_leader([OVER] * 4, wall_ahead=-10 * 86_400.0) is not None
