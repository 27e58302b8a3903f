"""Stops what a killed run left behind, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nstance.dev import leftovers
from nstance.dev.errors import DevError


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_recorded_process_is_ended(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    leftovers.record(tmp_path, "server-1", sleeper.pid)
    assert leftovers.end_servers(tmp_path) == ["server-1"]
    assert sleeper.wait(5) == -15
    assert leftovers.end_servers(tmp_path) == []


def test_another_process_with_a_reused_id_is_not_stopped(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    leftovers.record(tmp_path, "server-1", sleeper.pid)
    path = tmp_path / "server-1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"start": "another boot:12345"}))
    assert leftovers.end_servers(tmp_path) == []
    assert sleeper.poll() is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": "x", "start": 3}'])
def test_a_damaged_record_is_removed(tmp_path: Path, text: str) -> None:
    (tmp_path / "server-1.json").write_text(text)
    assert leftovers.end_servers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_one_folder_has_one_run(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    leftovers.record(tmp_path, "dev", sleeper.pid)
    with pytest.raises(DevError, match=str(sleeper.pid)):
        leftovers.claim(tmp_path, "dev")
    sleeper.kill()
    sleeper.wait(5)
    leftovers.claim(tmp_path, "dev")
    assert leftovers.end_servers(tmp_path) == []  # never oneself
    leftovers.remove_record(tmp_path, "dev")


def test_no_instances_no_agents(tmp_path: Path) -> None:
    assert leftovers.end_agents(tmp_path / "none") == 0
