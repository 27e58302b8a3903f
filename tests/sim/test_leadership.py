"""The product's election and journal in a hostile virtual world. One seed is one schedule, and replays exactly."""

import pytest

from nstance.objects import compaction
from sim.leadership_world import Setup, World, run

SEEDS = range(12)


def assert_sound(world: World, seed: int) -> None:
    assert not world.violations, f"seed {seed}: {world.violations[:3]}"


@pytest.mark.parametrize("seed", SEEDS)
def test_two_servers(seed: int) -> None:
    assert_sound(run(seed, Setup()), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_servers_with_drifting_clocks(seed: int) -> None:
    """F19, F21: promises and leases hold while clocks differ by four percent."""
    assert_sound(run(1000 + seed, Setup(servers=3, drift=0.02)), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_stale_reads(seed: int) -> None:
    """F33: a store that answers with the past costs retries only."""
    assert_sound(run(2000 + seed, Setup(stale=0.1)), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_frozen_machines(seed: int) -> None:
    """A hypervisor that stops a guest's clock may make two actors for a moment; it loses and damages nothing."""
    world = run(3000 + seed, Setup(servers=3, freezes=True))
    assert not [v for v in world.violations if not v.startswith("two actors")]


@pytest.mark.parametrize("seed", [1049])
def test_seeds_that_once_failed(seed: int) -> None:
    """1049: a standby promised the old leader to keep still while its own claim was on its way."""
    assert_sound(run(seed, Setup(servers=3, drift=0.02)), seed)


def test_a_seed_replays_exactly() -> None:
    first, second = run(7, Setup(servers=3)), run(7, Setup(servers=3))
    assert first.trace.hexdigest() == second.trace.hexdigest()
    assert first.counts == second.counts


def test_faults_happen() -> None:
    """A harness that does no harm proves nothing."""
    world = run(5, Setup(seconds=200.0, crash_points=0.02))
    for what in ("kills", "stops", "resignations", "terms", "acts"):
        assert world.counts.get(what, 0) >= 3, what
    assert any(name.startswith("crash ") for name in world.counts)


def test_compaction_under_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots every few slots, and slots removed as soon as the rules allow: nothing that was acknowledged is lost."""
    from nstance.objects import journal

    monkeypatch.setattr(journal, "SNAPSHOT_SLOTS", 5)
    monkeypatch.setattr(compaction, "KEEP_SECONDS", 20.0)
    removed = 0
    for seed in range(8):
        world = run(4000 + seed, Setup(servers=3))
        assert_sound(world, seed)
        numbers = [int(k[8:-5]) for k in world.storage.contents() if k.startswith("journal/")]
        removed += min(numbers) > 1
    assert removed, "compaction never removed anything"
