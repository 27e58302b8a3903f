"""Agents that register and never connect: the agents' address may be one that nobody can reach."""

from nstance.sim.desired_groups import DEAD_AFTER
from nstance.sim.world import World, world
from sim.test_sim_findings import check_settles, setup

SHUT_OUT_SECONDS = 300.0


def begin_shut_out(w: World) -> None:
    w.agents_shut_out_until = SHUT_OUT_SECONDS
    w.begin()


def calls(w: World) -> tuple[int, int]:
    return w.counts["calls create"], w.counts["calls delete"]


def test_agents_that_register_and_never_connect_are_not_replaced_for_ever() -> None:
    """Their silence is probably the server's fault."""
    with world(1, setup(3)) as w:
        begin_shut_out(w)
        while not w.counts["decided mass-silence"]:
            w.advance(0.5)
            assert w.now < 60.0
        before = calls(w)
        w.advance(SHUT_OUT_SECONDS - w.now - 1.0)
        assert calls(w) == before
        assert not w.counts["calls delete"]
        w.advance(10.0)
        check_settles(w)


def test_a_small_group_whose_agents_never_connect_backs_off() -> None:
    """Two are too few for the brake."""
    with world(1, setup(1)) as w:
        begin_shut_out(w)
        w.advance(10.0)
        leader = w.leader()
        assert leader is not None
        assert leader.lead is not None
        shard = leader.lead.shard
        [key] = shard.desired_groups
        while shard.trend(key).failures < 2:
            w.advance(0.5)
            assert w.now < 2 * DEAD_AFTER + 60.0
        wait = shard.trend(key).retry_at - leader.machine.steady()
        assert wait > 20.0
        assert w.counts["calls create"] == 2
        w.advance(wait - 1.0)
        assert w.counts["calls create"] == 2
        w.advance(SHUT_OUT_SECONDS)
        check_settles(w)
