"""`nstance-sim` as a user calls it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nstance.sim import main
from nstance.sim.search import swarm
from nstance.sim.search.schedule import Verdict, play
from support.eventually import wait_for


def test_a_swarm_without_violations_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["swarm", "--seeds", "3", "--start", "5", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "3 seeds" in printed
    assert "0 seeds with violations" in printed


def test_a_violation_exits_with_1_and_names_the_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(seed: int, *, servers: int | None) -> Verdict:
        found = play(seed, servers=servers)
        violations = ("at 1.0 s: I1: a VM leaked",) if seed == 6 else ()
        return Verdict(seed, violations, found.hash, found.counts, found.virtual_seconds, found.seconds)

    monkeypatch.setattr(swarm, "play", spoiled)
    assert main.main(["swarm", "--seeds", "3", "--start", "5", "--jobs", "1", "--servers", "3"]) == 1
    assert "replay it: nstance-sim replay 6 --servers 3\n" in capsys.readouterr().out


def test_a_run_resumes_where_it_was_interrupted(tmp_path: Path) -> None:
    progress = tmp_path / "progress.json"
    first = swarm.swarm(seeds=2, start=5, servers=2, jobs=1, resume=progress)
    played: list[int] = []

    def recorded(seed: int, *, servers: int | None) -> Verdict:
        played.append(seed)
        return play(seed, servers=servers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swarm, "play", recorded)
        both = swarm.swarm(seeds=3, start=5, servers=2, jobs=1, resume=progress)
    assert played == [7]
    assert both.seeds == 3
    assert both.counts["terms"] > first.counts["terms"]


def test_the_progress_before_an_interruption_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seed: int, *, servers: int | None) -> Verdict:
        if seed == 7:
            raise KeyboardInterrupt
        return play(seed, servers=servers)

    progress = tmp_path / "progress.json"
    monkeypatch.setattr(swarm, "play", interrupted)
    run = ["swarm", "--seeds", "100", "--start", "5", "--jobs", "1", "--resume", str(progress)]
    assert main.main(run) == 130
    assert json.loads(progress.read_text())["done"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"start": 9, "servers": null, "done": 2, "tally": {}}', "belongs to a run from seed 9"),
        ('{"start": 5, "servers": null, "done": 2, "tally": {}}', "is not a progress file"),
        ("[]", "is not a progress file"),
        ("{", "is not a progress file"),
    ],
)
def test_a_foreign_progress_file_is_not_overwritten(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = tmp_path / "progress.json"
    progress.write_text(text)
    assert main.main(["swarm", "--seeds", "1", "--start", "5", "--resume", str(progress)]) == 2
    assert message in capsys.readouterr().err
    assert progress.read_text() == text


def test_a_progress_file_that_cannot_be_written_is_reported_before_the_first_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm, "play", None)
    assert main.main(["swarm", "--seeds", "1", "--resume", str(tmp_path / "no" / "such.json")]) == 2
    assert "failed to save the progress" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5"])
def test_a_swarm_of_no_seeds_is_refused(option: str, number: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["swarm", option, number])
    assert ended.value.code == 2


def test_one_case_of_the_exhaustive_run_prints_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    name = "crash at visit 1 of before-create and pause at visit 1 of after-commit"
    assert main.main(["exhaustive", "--only", name]) == 0
    printed = capsys.readouterr().out
    assert "before-create" in printed
    assert "rest" in printed
    assert main.main(["exhaustive", "--only", "crash at visit 1 of nowhere"]) == 2
    assert "there is no case" in capsys.readouterr().err


def test_replay_prints_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["replay", "5", "--twice"]) == 0
    printed = capsys.readouterr().out
    assert "appeared" in printed
    assert "trace" in printed


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGKILL,)])
def test_an_interrupted_or_killed_run_leaves_no_process_behind(
    signals: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    """Some people press Ctrl-C twice. Every process of the run holds the output pipe, so that reading it to its end waits."""
    progress = tmp_path / "progress.json"
    command = [sys.executable, "-m", "nstance.sim.main", "swarm", "--seeds", "100000", "--jobs", "2"]
    run = subprocess.Popen(
        [*command, "--resume", str(progress)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    started = [run.pid]
    try:
        wait_for("the processes", lambda: len(_children(run.pid)) == 2)
        started += _children(run.pid)
        for number in signals:
            run.send_signal(number)
            wait_for("the processes", lambda: len(_children(run.pid)) < 2)  # it was handled: two at once would be one
        output, _ = run.communicate(timeout=60)
    finally:
        for each in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        run.wait()
    # The second Ctrl-C may arrive when Python has already removed its handlers.
    assert run.returncode in ((-signal.SIGKILL,) if signal.SIGKILL in signals else (130, -signal.SIGINT)), output
    assert "Traceback" not in output
    assert json.loads(progress.read_text())["start"] == 0


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_a_closed_pipe_does_not_change_the_result() -> None:
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
