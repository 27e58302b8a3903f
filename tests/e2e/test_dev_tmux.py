"""`make dev-tmux`: the Procfile under honcho, with dev-s3, two shards, and agents in a tmux session."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nstance.dev import clean, leftovers
from nstance.providers import processes
from support import dev_tmux, docs_pages, ports
from support.dev_tmux import HONCHO, ROOT, windows
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), *dev_tmux.NEEDS]
own_tmux = dev_tmux.own_tmux


@pytest.fixture
def base() -> Iterator[int]:
    """Of the servers' ports; the standbys' are a hundred higher."""
    with ports.claimed(blocks=3) as first:
        yield first


@pytest.mark.usefixtures("own_tmux")
def test_two_shards_over_dev_s3_with_agents_in_tmux(tmp_path: Path, base: int) -> None:
    temp, output = tmp_path / "temp", tmp_path / "output"
    environment = {
        **os.environ,
        "NSTANCE_DEV_TEMP": str(temp),
        "NSTANCE_DEV_PORT": str(base),
        "NSTANCE_DEV_S3_PORT": str(base + 20),
        "STANDBYS": "1",
        "AWS_PROFILE": "nobody-has-this-one",
    }
    with output.open("wb") as out:
        honcho = subprocess.Popen(
            [HONCHO, "start", "-c", "server=2", "s3", "server"], cwd=ROOT, env=environment, stdout=out, stderr=out
        )
    try:

        def has_printed(text: str, times: int) -> bool:
            text_so_far = output.read_text()
            if honcho.poll() is not None or "Traceback" in text_so_far:
                raise AssertionError(f"it failed before it said {text!r}:\n{text_so_far}")
            return text_so_far.count(text) >= times

        wait_for("four registered agents", lambda: has_printed("agent registered", 4), seconds=180)
        wait_for("two standbys", lambda: has_printed("standby joined", 2), seconds=120)
        first, second = (dict(leftovers.agents(temp / name / "instances")) for name in ("cache", "cache-dev-2"))
        assert (len(first), len(second)) == (2, 2)
        assert windows() == {f"nstance-agent-{id}" for id in (*first, *second)}
        assert (temp / "dev-s3/cluster/ca.crt").exists()
        assert (temp / "dev-s3/shard/dev-2/config.jsonc").exists()
        assert {path.name for path in (temp / "logs").iterdir()} == {
            "s3.log",
            *(f"dev-{number}{kind}.log" for number in (1, 2) for kind in ("", "-standby")),
        }
        assert len(list((temp / "dev-k8s/nodes").iterdir())) == 4

        [command] = docs_pages.runnable("development.md")
        for printed, own in (("localhost:8989", f"localhost:{base + 20}"), ("./bin/nstance-admin", "nstance-admin")):
            assert printed in command
            command = command.replace(printed, own)
        made = subprocess.run(
            ["bash", "-c", command],
            env=docs_pages.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert made.stdout.count(".") == 2

        victim = leftovers._recorded(temp / "pids/dev-1.json")
        assert victim is not None
        os.kill(victim.pid, signal.SIGKILL)
        wait_for(
            "its end on the screen",
            lambda: has_printed(f"dev-1 (pid {victim.pid}) was ended by SIGKILL", 1),
            seconds=120,
        )
        restarts = output.read_text().count(
            "code changed: restarting dev-1"
        )  # somebody edits the sources while this test runs
        wait_for(
            "a server in its place",
            lambda: has_printed("dev-1 restarted", 1) or has_printed("code changed: restarting dev-1", restarts + 1),
            seconds=120,
        )
        wait_for("the leader sees it", lambda: has_printed("standby joined", 3), seconds=120)

        honcho.send_signal(signal.SIGINT)
        honcho.wait(60)
        agents = [*first.values(), *second.values()]
        assert all(processes.is_running(agent) for agent in agents)  # instances survive their servers
        for shard in ("dev-1", "dev-2"):
            assert f"2 agents of {shard} keep running in the tmux session nstance-dev-agents: " in output.read_text()
        assert output.read_text().count("`make clean-dev` stops them") == 2
        assert "stopped 4 agents" in clean.clean(temp)
        assert [agent for agent in agents if processes.is_running(agent)] == []
        assert windows() == set()
        assert not temp.exists()
    finally:
        if honcho.poll() is None:
            honcho.send_signal(signal.SIGTERM)
            honcho.wait(60)
        clean.clean(temp)
