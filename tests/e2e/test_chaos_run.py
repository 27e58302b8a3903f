"""The chaos tool itself, small: real processes, three faults, and a shard that is whole afterwards."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
FAULTS = ("kill_leader", "failing_storage", "forged_nonces")


def chaos(folder: Path, *arguments: str, out: int) -> "subprocess.Popen[bytes]":
    """In a folder of its own: what a failed run leaves behind is put there."""
    return subprocess.Popen(
        [sys.executable, "-m", "chaos", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT if out != subprocess.PIPE else None,
    )


def of_this_run(folder: Path) -> list[str]:
    """Processes that work in the folder."""
    mark, found = os.fsencode(folder), []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and mark in (each / "cmdline").read_bytes():
                found.append(each.name)
        except OSError:
            continue
    return found


def command_line(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_three_faults_and_a_whole_shard(tmp_path: Path) -> None:
    run = chaos(
        tmp_path,
        "--agents=6",
        "--seconds=20",
        "--seed=3",
        f"--faults={','.join(FAULTS)}",
        "--json",
        out=subprocess.PIPE,
    )
    output, _ = run.communicate(timeout=800)
    found = json.loads(output)
    assert found["problems"] == []
    assert run.returncode == 0
    assert {row["fault"]: row["verdict"] for row in found["faults"]} == dict.fromkeys(FAULTS, "held")
    assert found["epochs"] >= 2
    assert not of_this_run(tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_it_ends_in_order_when_it_is_interrupted(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as output:
        run = chaos(tmp_path, "--agents=2", "--seconds=60", "--faults=kill_vms", out=output.fileno())
        try:
            wait_for("agents run", lambda: len(of_this_run(tmp_path)) >= 3, seconds=180)
            run.send_signal(signal.SIGINT)
            assert run.wait(120) == 130
        finally:
            if run.poll() is None:
                run.kill()
                run.wait(60)
    assert not of_this_run(tmp_path)
    assert "all started processes have ended" in (tmp_path / "output").read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("is_killed", [False, True], ids=["a leader that stays", "a leader that is killed"])
def test_a_change_of_leadership_in_a_busy_hour_is_counted(tmp_path: Path, *, is_killed: bool) -> None:
    with (tmp_path / "output").open("wb") as output:
        run = chaos(tmp_path, "busy", "--seconds=8", "--load=1", out=output.fileno())
        try:
            if is_killed:
                wait_for("the leader is sampled", lambda: b"1 of 1" in (tmp_path / "output").read_bytes())
                [log] = [each for each in tmp_path.glob("nstance-busy-*/?.log") if "standby joined" in each.read_text()]
                [leader] = [pid for pid in of_this_run(tmp_path) if f"--id={log.stem}" in command_line(pid)]
                os.kill(int(leader), signal.SIGKILL)
            assert run.wait(120) == int(is_killed)
        finally:
            if run.poll() is None:
                run.kill()
                run.wait(60)
    assert f"{int(is_killed)} changes of leadership" in (tmp_path / "output").read_text()
    assert not of_this_run(tmp_path)
