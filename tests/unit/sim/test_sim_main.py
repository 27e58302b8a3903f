"""nstance-sim as a user calls it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nstance.sim import main
from nstance.sim.search import swarm
from nstance.sim.search.schedule import Verdict, play


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
    assert main.main(["swarm", "--seeds", "3", "--start", "5", "--jobs", "1", "--servers", "3"]) == 1
    assert "to see it again: nstance-sim replay 6 --servers 3\n" in capsys.readouterr().out


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


def test_what_was_played_before_an_interruption_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seed: int, *, servers: int | None) -> Verdict:
        if seed == 7:
            raise KeyboardInterrupt
        return play(seed, servers=servers)

    kept = tmp_path / "progress.json"
    monkeypatch.setattr(swarm, "play", interrupted)
    run = ["swarm", "--seeds", "100", "--start", "5", "--jobs", "1", "--resume", str(kept)]
    assert main.main(run) == 130
    assert json.loads(kept.read_text())["done"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"start": 9, "servers": null, "done": 2, "tally": {}}', "keeps a run from seed 9"),
        ('{"start": 5, "servers": null, "done": 2, "tally": {}}', "no file of an interrupted run"),
        ("[]", "no file of an interrupted run"),
        ("{", "no file of an interrupted run"),
    ],
)
def test_a_file_of_something_else_is_left_alone(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "progress.json"
    kept.write_text(text)
    assert main.main(["swarm", "--seeds", "1", "--start", "5", "--resume", str(kept)]) == 2
    assert said in capsys.readouterr().err
    assert kept.read_text() == text


def test_a_place_where_nothing_can_be_kept_is_told_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm, "play", None)
    assert main.main(["swarm", "--seeds", "1", "--resume", str(tmp_path / "no" / "such.json")]) == 2
    assert "cannot be kept" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5"])
def test_a_swarm_of_nothing_is_no_success(option: str, number: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["swarm", option, number])
    assert ended.value.code == 2


def test_one_case_of_the_exhaustive_run_tells_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    name = "crash at visit 1 of before-create and pause at visit 1 of after-commit"
    assert main.main(["exhaustive", "--only", name]) == 0
    told = capsys.readouterr().out
    assert "before-create" in told
    assert "rest" in told
    assert main.main(["exhaustive", "--only", "crash at visit 1 of nowhere"]) == 2
    assert "there is no case" in capsys.readouterr().err


def test_replay_tells_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["replay", "5", "--twice"]) == 0
    told = capsys.readouterr().out
    assert "appeared" in told
    assert "trace" in told


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGKILL,)])
def test_an_end_from_outside_leaves_nobody_behind(signals: tuple[signal.Signals, ...], tmp_path: Path) -> None:
    """Impatient people press Ctrl-C twice. Every process of the run holds the pipe that its words go into."""
    kept = tmp_path / "progress.json"
    command = [sys.executable, "-m", "nstance.sim.main", "swarm", "--seeds", "100000", "--jobs", "2"]
    run = subprocess.Popen(
        [*command, "--resume", str(kept)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    started = [run.pid]
    try:
        _wait_until(lambda: len(_children(run.pid)) == 2)
        started += _children(run.pid)
        for number in signals:
            run.send_signal(number)
            _wait_until(lambda: len(_children(run.pid)) < 2)  # it was heard: two at once would be one
        told, _ = run.communicate(timeout=60)
    finally:
        for each in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        run.wait()
    # The second Ctrl-C may come when Python has already put its handlers away.
    assert run.returncode in ((-signal.SIGKILL,) if signal.SIGKILL in signals else (130, -signal.SIGINT)), told
    assert "Traceback" not in told
    assert json.loads(kept.read_text())["start"] == 0


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_whoever_has_read_enough_of_a_story_does_not_change_its_end() -> None:
    """`nstance-sim replay 5 | head -1`"""
    command = [sys.executable, "-m", "nstance.sim.main", "replay", "5"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline().startswith("Setup(")
    run.stdout.close()
    assert run.stderr is not None
    assert run.stderr.read() == ""
    run.stderr.close()
    assert run.wait(timeout=60) == 0
