"""A few random schedules of the operator; `python -m sim.operator_swarm 500` in tests/ plays more."""

import pytest

from sim import operator_swarm


@pytest.mark.parametrize("seed", range(8))
def test_a_storm_leaves_nothing_lost_leaked_or_doubled(seed: int) -> None:
    world = operator_swarm.run(seed)
    assert world.faults > 20
    assert world.kills > 2
