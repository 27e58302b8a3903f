"""nstance-sim as a user calls it."""

from pathlib import Path

import pytest

from nstance.sim import main, swarm
from nstance.sim.schedule import Verdict, play


def test_a_swarm_without_violations_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["swarm", "--seeds", "3", "--start", "5", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "3 seeds" in told
    assert "0 seeds with violations" in told


def test_a_violation_ends_a_swarm_with_1_and_the_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(seed: int, *, servers: int | None) -> Verdict:
        found = play(seed, servers=servers)
        violations = ("at 1.0 s: I1: a VM leaked",) if seed == 6 else ()
        return Verdict(seed, violations, found.hash, found.counts, found.virtual_seconds, found.seconds)

    monkeypatch.setattr(swarm, "play", spoiled)
    assert main.main(["swarm", "--seeds", "3", "--start", "5", "--jobs", "1"]) == 1
    assert "nstance-sim replay 6" in capsys.readouterr().out


def test_a_long_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    kept = tmp_path / "progress.json"
    first = swarm.swarm(seeds=2, start=5, servers=2, jobs=1, resume=kept)
    played: list[int] = []

    def noted(seed: int, *, servers: int | None) -> Verdict:
        played.append(seed)
        return play(seed, servers=servers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swarm, "play", noted)
        both = swarm.swarm(seeds=3, start=5, servers=2, jobs=1, resume=kept)
    assert played == [7]
    assert both.seeds == 3
    assert both.counts["terms"] > first.counts["terms"]


def test_replay_tells_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["replay", "5", "--twice"]) == 0
    told = capsys.readouterr().out
    assert "appeared" in told
    assert "trace" in told
