"""Leadership on slow storage: no leader is lost, and none changes needlessly."""

import pytest

from sim.leadership_world import Setup, World, run_calm

SECONDS = 150
SAMPLES_AFTER = 30  # seconds


def leader_share(world: World, slow: float) -> float:
    """The share of samples with a leader, from 30 s after storage became slow."""
    world.slow = slow
    led = []
    for second in range(SECONDS):
        world.advance(1.0)
        if second >= SAMPLES_AFTER:
            led.append(any(term.leading() for term in world.acting.values()))
    return sum(led) / len(led)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("slow", [0.8, 2.0, 5.0])
def test_a_store_that_becomes_slow_costs_no_leader_and_no_epoch(slow: float, servers: int) -> None:
    with run_calm(1, Setup(servers=servers)) as world:
        world.advance(30.0)
        terms = world.counts["terms"]
        assert leader_share(world, slow) >= 0.95
        assert world.counts["terms"] == terms
        world.audit()
        assert not world.violations


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("slow", [0.8, 2.0, 5.0])
def test_servers_that_start_on_a_slow_store_find_a_leader(slow: float, servers: int) -> None:
    with run_calm(2, Setup(servers=servers, slow=slow)) as world:
        world.advance(10.0 * slow)
        assert leader_share(world, slow) >= 0.95
        assert world.counts["terms"] == 1, "one claim, one epoch"
        world.audit()
        assert not world.violations


@pytest.mark.parametrize("slow", [0.8, 2.0, 5.0])
def test_a_standby_that_dies_on_a_slow_store_costs_no_leader(slow: float) -> None:
    """Its promise would end long before a renewal is written, so it is longer on slow storage."""
    with run_calm(3, Setup()) as world:
        world.advance(30.0)
        world.slow = slow
        world.advance(60.0)
        (standby,) = (machine for machine in world.machines if machine.name not in world.acting)
        world.do(world.kill, standby, 20.0)
        assert leader_share(world, slow) >= 0.95
        assert world.counts["terms"] == 1
        assert not world.violations


@pytest.mark.parametrize("slow", [0.8, 2.0, 5.0])
def test_a_server_whose_standby_is_gone_keeps_its_term_when_the_store_becomes_slow(slow: float) -> None:
    """The standby may return, so the leases are short; but while none is connected, a term need not end to make room."""
    with run_calm(6, Setup()) as world:
        world.advance(30.0)
        (standby,) = (machine for machine in world.machines if machine.name not in world.acting)
        world.do(world.kill, standby, 3600.0)
        world.advance(60.0)
        assert leader_share(world, slow) >= 0.95
        assert world.counts["terms"] == 1
        world.audit()
        assert not world.violations


@pytest.mark.parametrize("slow", [0.8, 2.0, 5.0])
def test_a_leader_that_dies_on_a_slow_store_is_replaced_once(slow: float) -> None:
    with run_calm(4, Setup()) as world:
        world.advance(30.0)
        world.slow = slow
        world.advance(60.0)
        leader = next(machine for machine in world.machines if machine.name in world.acting)
        world.do(world.kill, leader, 3600.0)
        world.advance(10.0 + 8 * slow)
        assert any(term.leading() for term in world.acting.values())
        world.advance(60.0)
        assert world.counts["terms"] == 2
        world.audit()
        assert not world.violations


@pytest.mark.parametrize("seed", range(8))
def test_storage_that_alternates_between_slow_and_fast_does_no_harm(seed: int) -> None:
    from sim.leadership_world import run

    world = run(5000 + seed, Setup(servers=3, slowness=True))
    assert not world.violations, f"seed {seed}: {world.violations[:3]}"
