"""Failover when the leader's process dies: its connections are reset and its port refuses new ones."""

import functools

import pytest

from nstance.core.election import Timings
from nstance.sim.loop import Machine
from sim.leadership_world import Setup, World, run_calm


def wait_for_leader(world: World) -> tuple[Machine, Machine]:
    """The leader and its standby."""
    world.advance(20.0 + world.random.uniform(0.0, 1.0))
    leader = next(machine for machine in world.machines if machine.name in world.acting)
    return leader, next(machine for machine in world.machines if machine is not leader)


def until_acts(world: World, machine: Machine) -> float:
    began = world.loop.time()
    while machine.name not in world.acting:
        world.advance(0.001)
        assert world.loop.time() - began < 10.0
    return world.loop.time() - began


@pytest.mark.parametrize(("power", "within"), [(True, 0.6), (False, 1.5)])
def test_a_dead_leader_is_replaced_in_time(power: bool, within: float) -> None:
    """A host without power resets nothing: the standby waits until its promise ends."""
    took = []
    for seed in range(20):
        with run_calm(seed, Setup(latency=0.3)) as world:
            leader, standby = wait_for_leader(world)
            world.do(functools.partial(world.kill, leader, 3600.0, power=power))
            took.append(until_acts(world, standby))
            assert not world.violations
    assert max(took) <= within
    assert power or min(took) > Timings().promise


def test_a_leader_that_only_seems_dead_keeps_leading() -> None:
    """A firewall resets the standby's connection and refuses others; the leader lives and is not notified. It notices the
    missing standby and renews its lease before the standby claims, unless storage is slow just then."""
    replaced = 0
    for seed in range(20):
        with run_calm(seed, Setup()) as world:
            leader, standby = wait_for_leader(world)
            world.do(world.network.rejected.add, (standby.name, leader.name))
            world.advance(30.0)
            assert not world.violations
            replaced += world.counts["terms"] - 1
    assert replaced <= 2


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02, 0.05, 0.09])
def test_a_leader_that_dies_while_it_renews_is_replaced_as_soon(delay: float) -> None:
    """Its renewal may be stored although no heartbeat has named its version."""
    with run_calm(7, Setup()) as world:
        leader, standby = wait_for_leader(world)
        held = world.electors[leader.name]._held
        assert held is not None
        sequence = held.lease.sequence
        held._renew_now.set()
        while held._pending is None and held.lease.sequence == sequence:
            world.advance(0.001)
        world.advance(delay)
        world.do(world.kill, leader, 3600.0)
        assert until_acts(world, standby) <= 0.7
        assert not world.violations


@pytest.mark.parametrize("seed", range(12))
def test_a_leader_that_only_seems_dead_and_cannot_write_stops_before_the_next_one_acts(seed: int) -> None:
    with run_calm(seed, Setup()) as world:
        leader, standby = wait_for_leader(world)
        term = world.acting[leader.name]

        def isolate() -> None:
            world.cut_storage.add(leader.name)
            world.network.rejected.add((standby.name, leader.name))

        world.do(isolate)
        while standby.name not in world.acting:
            world.advance(0.01)
        assert not term.leading()
        world.advance(10.0)
        assert not world.violations
