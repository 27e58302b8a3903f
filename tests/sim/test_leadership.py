"""The product's election and journal with random faults in virtual time. One seed is one schedule, and replays exactly.

NSTANCE_ELECTIONS sets how many seeds each kind of fault gets, NSTANCE_WALK_SEED which is the first.
"""

import os

import pytest

from nstance.objects import journal
from sim.leadership_world import Setup, World, run

FIRST = int(os.environ.get("NSTANCE_WALK_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("NSTANCE_ELECTIONS", "4")))


def assert_no_violations(world: World, seed: int) -> None:
    assert not world.violations, f"seed {seed}: {world.violations[:3]}"


@pytest.mark.parametrize("seed", SEEDS)
def test_two_servers_survive_random_faults(seed: int) -> None:
    assert_no_violations(run(seed, Setup()), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_servers_survive_drifting_clocks(seed: int) -> None:
    """Promises and leases hold while clocks differ by four percent."""
    assert_no_violations(run(1000 + seed, Setup(servers=3, drift=0.02)), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_stale_reads_do_no_harm(seed: int) -> None:
    """Stale answers of the store cost only retries."""
    assert_no_violations(run(2000 + seed, Setup(stale=0.1)), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_frozen_machines_lose_nothing(seed: int) -> None:
    """A hypervisor that stops a guest's clock may cause two actors for a moment; nothing is lost or damaged."""
    world = run(3000 + seed, Setup(servers=3, freezes=True))
    assert not [v for v in world.violations if not v.startswith("two actors")]


@pytest.mark.parametrize("seed", [1049])
def test_seeds_that_once_failed(seed: int) -> None:
    """1049: a standby made a promise to the old leader while its own claim was on its way."""
    assert_no_violations(run(seed, Setup(servers=3, drift=0.02)), seed)


def test_a_seed_replays_exactly() -> None:
    first, second = run(7, Setup(servers=3)), run(7, Setup(servers=3))
    assert first.trace.hexdigest() == second.trace.hexdigest()
    assert first.counts == second.counts


def test_every_kind_of_fault_happens() -> None:
    """A run without faults proves nothing."""
    world = run(5, Setup(seconds=200.0, crash_points=0.02))
    for name in ("kills", "stops", "resignations", "terms", "acts"):
        assert world.counts.get(name, 0) >= 3, name
    assert any(each.startswith("crash ") for each in world.counts)


def test_compaction_under_faults_loses_nothing() -> None:
    """Snapshots every few slots, and slots removed as soon as the rules allow: nothing that was acknowledged is lost."""
    setup = Setup(servers=3, limits=journal.Limits(snapshot_slots=5, keep_seconds=20.0))
    removed = 0
    for seed in SEEDS:
        world = run(4000 + seed, setup)
        assert_no_violations(world, seed)
        numbers = [int(k[8:-5]) for k in world.storage.contents() if k.startswith("journal/")]
        removed += min(numbers) > 1
    assert removed, "compaction never removed anything"
