"""`make dev` as people use it: started, broken, ended, and killed without a chance to clean up."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nstance.dev import leftovers
from nstance.providers import processes
from support import docs_pages, ports
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
DEV = [sys.executable, "-m", "nstance.dev"]


class Run:
    """A `make dev` in a folder of its own, with what it has said."""

    def __init__(self, folder: Path, *arguments: str, ports: int) -> None:
        self.folder = folder
        self.ports = ports
        self.output = folder.parent / "output"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*DEV, "--dir", str(folder), "--ports", str(ports), *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def has_printed(self, pattern: str) -> re.Match[str] | None:
        found = re.search(pattern, self.output.read_text(), re.MULTILINE)
        if found is None and self.process.poll() is not None:
            raise AssertionError(f"it ended before it said {pattern!r}:\n{self.output.read_text()}")
        return found

    def await_word(self, pattern: str) -> str:
        try:
            return wait_for(pattern, lambda: self.has_printed(pattern), seconds=120)[1]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output.read_text()}") from None

    def started(self) -> set[processes.Process]:
        """Servers and agents that run now."""
        pids = [int(pid) for pid in re.findall(r"started \(pid (\d+)\)", self.output.read_text())]
        servers = {processes.Process(pid, start) for pid in pids if (start := processes.start_of(pid))}
        return servers | {process for _, process in leftovers.agents(self.folder / "instances")}

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


@contextlib.contextmanager
def running(folder: Path, *arguments: str, after: Run | None = None) -> Iterator[Run]:
    """`after`: on the ports of an earlier run, whose agents know no others."""
    with contextlib.ExitStack() as held:
        # The standby's are a hundred higher.
        base = after.ports if after is not None else held.enter_context(ports.claimed(blocks=3))
        run = Run(folder, *arguments, ports=base)
        try:
            yield run
        finally:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
            leftovers.end_servers(folder / "pids")
            leftovers.end_agents(folder / "instances")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "dev"


def test_once_breaks_and_heals_and_leaves_nothing_behind(folder: Path) -> None:
    with running(folder, "--once") as run:
        killed = run.await_word(r"kill -9 \d+: the agent of (\S+) and its VM crash")
        replacement = run.await_word(r"replaced by (\S+): decided after [\d.]+ s, started after .* registered after")
        assert run.process.wait(120) == 0
        assert replacement != killed
        run.await_word(r"kill -9 (\d+): the leader crashes")
        run.await_word(r"(server-\d) leads, and all 3 agents are connected to it")
        assert run.started() == set()
        assert run.has_printed("stopped 3 agents") is not None


def test_once_fails_where_agents_get_no_files(folder: Path, tmp_path: Path) -> None:
    """Records say that they run: only their folders show that they do not work."""
    text = (ROOT / "examples/config-dev.jsonc").read_text()
    bad = tmp_path / "bad.jsonc"
    secret = '"secret.txt": { "kind": "secret", "source": "nobody-put-it-there" },'
    bad.write_text(text.replace('"files": {', f'"files": {{ {secret}', 1))
    with running(folder, "--once", "--within", "15", "--config", str(bad)) as run:
        assert run.process.wait(180) == 1
        output = run.output.read_text()
        assert re.search(r"dev: expected a healthy shard within 15 s: \S+ has not installed ", output), output
        assert run.started() == set()


def test_the_commands_of_the_first_page_look_at_it_and_steer_it(folder: Path, tmp_path: Path) -> None:
    """All of getting-started.md but for those about one's own shard, which test_docs_pages.py runs."""
    commands = docs_pages.runnable("getting-started.md")
    last = next(number for number, command in enumerate(commands) if "openssl x509" in command)
    with running(folder) as run:
        run.await_word(r"kill -9 (\d+) +the leader")
        script = "\n".join(commands[: last + 1])
        script = script.replace("temp/dev", str(folder)).replace("$PWD/.venv/bin", str(Path(sys.executable).parent))
        for port, own in (("8993", run.ports + 3), ("9093", run.ports + 103)):
            assert port in script
            script = script.replace(port, str(own))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=docs_pages.environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert "✓ demo 3" in done.stdout
        assert re.search(r"create ×2 +scale-up", done.stdout)
        assert "vars greeting changed" in done.stdout
        assert done.stdout.count("Certificate:") >= 3
        assert run.end(signal.SIGINT) == 0


def test_the_leader_is_killed_then_everything_ends_with_ctrl_c(folder: Path) -> None:
    with running(folder) as run:
        leader = int(run.await_word(r"kill -9 (\d+) +the leader"))
        before = dict(leftovers.agents(folder / "instances"))
        again = subprocess.run([*DEV, "--dir", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert again.returncode == 1
        assert f"already running here as process {run.process.pid}" in again.stderr

        os.kill(leader, signal.SIGKILL)
        run.await_word(r"(leader: server-\d \(epoch 2\), [\d.]+ s after server-\d exited)")
        run.await_word(r"(server-\d restarted)")
        assert dict(leftovers.agents(folder / "instances")) == before  # nobody was replaced for that
        started = run.started()
        assert len(started) == 5
        assert run.end(signal.SIGINT) == 0
        assert [process for process in started if processes.is_running(process)] == []


def test_kept_agents_are_found_again_and_ended_ones_are_replaced(folder: Path) -> None:
    """All but the bucket is gone after the second run: the group comes back to its size."""
    with running(folder, "--keep") as first:
        first.await_word("(all instances are running)")
        kept = dict(leftovers.agents(folder / "instances"))
        assert len(kept) == 3
        assert first.end(signal.SIGTERM) == 0
        with running(folder, after=first) as second:
            second.await_word("(found 3 instances of an earlier run)")
            second.await_word("(all instances are running)")
            assert dict(leftovers.agents(folder / "instances")) == kept
            assert second.end(signal.SIGINT) == 0
    assert dict(leftovers.agents(folder / "instances")) == {}
    for path in folder.iterdir():
        if path.name != "bucket":
            shutil.rmtree(path)
    with running(folder) as third:
        third.await_word("(all instances are running)")
        assert len(dict(leftovers.agents(folder / "instances")).keys() - kept.keys()) == 3
        assert third.end(signal.SIGINT) == 0


def test_what_a_killed_run_leaves_behind_is_cleaned(folder: Path, tmp_path: Path) -> None:
    with running(folder) as run:
        run.await_word("(all instances are running)")
        started = run.started()
        assert len(started) == 5
        run.process.kill()
        run.process.wait()
        assert all(processes.is_running(process) for process in started)
        command = [sys.executable, "-m", "nstance.dev.clean", "--temp", str(folder.parent)]
        own_tmux = {**os.environ, "TMUX_TMPDIR": str(tmp_path)}
        cleaned = subprocess.run(command, env=own_tmux, capture_output=True, text=True, timeout=120, check=True)
        assert "stopped 3 agents" in cleaned.stdout
        assert [process for process in started if processes.is_running(process)] == []
        assert not folder.exists()


def test_a_bad_configuration_is_shown_and_nothing_starts(folder: Path, tmp_path: Path) -> None:
    text = (ROOT / "examples/config-dev.jsonc").read_text()
    bad = tmp_path / "bad.jsonc"
    bad.write_text(text.replace('"size": 3', '"siez": 3').replace('"template": "demo",', '"template": "dmeo",'))
    with running(folder, "--config", str(bad)) as run:
        assert run.process.wait(120) == 1
        output = run.output.read_text()
        assert 'did you mean "size"?' in output
        assert 'did you mean "demo"?' in output
        assert "started" not in output
