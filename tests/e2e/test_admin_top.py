"""`top`, `status --watch` and waits in a real terminal, on real servers and agents, while the leader is killed."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from e2e.processes import KEY, OFFSET, ShardWorld, settings, shard_world
from nstance.admin import main
from support.eventually import wait_for
from support.terminal import NEEDS_TMUX, Terminal, terminal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), NEEDS_TMUX]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShardWorld]:
    """A leader with a group of three and a standby that the lease names."""
    with shard_world(tmp_path) as made:
        made.configure(settings(made))
        leader = made.start("a")
        wait_for("a leads", leader.acts)
        made.start("b", offset=OFFSET)
        wait_for("the group is whole", made.running(3))
        wait_for("the standby is a member", lambda: (leader.leadership() or {}).get("members"))
        wait_for("all agents are connected", lambda: leader.metric("nstance_agents_connected") == 3)
        yield made


@pytest.fixture
def environment(world: ShardWorld) -> dict[str, str]:
    port = world.ports["operator"]
    found = {
        "NSTANCE_ADMIN_STORAGE_PROVIDER": "file",
        "NSTANCE_ADMIN_STORAGE_BUCKET": str(world.bucket),
        "NSTANCE_ENCRYPTION_KEY": KEY,
        "NSTANCE_ADMIN_IDENTITY_DIR": str(world.home / "identity"),
        "NSTANCE_ADMIN_SERVERS": f"dev=127.0.0.1:{port}|127.0.0.1:{port + OFFSET}",
        "XDG_CONFIG_HOME": str(world.home / "config"),
    }
    run(found, "cluster", "register-operator", "--output-dir", str(world.home / "identity"))
    return found | {"NSTANCE_ADMIN_SHARD": "dev"}


@pytest.fixture
def window(environment: dict[str, str]) -> Iterator[Terminal]:
    with terminal(environment) as opened:
        yield opened


def run(environment: dict[str, str], *words: str) -> str:
    result = CliRunner().invoke(main.root, list(words), env=environment)
    assert result.exit_code == 0, result.output
    return result.stdout


def events(environment: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(environment, "events", "--limit", "1000", "-o", "json"))
    return found


def test_top_shows_the_fleet_and_loses_no_event_when_the_leader_is_killed(
    world: ShardWorld, environment: dict[str, str], window: Terminal
) -> None:
    instances = sorted(world.records())
    window.start("top", size=(80, 24))
    window.until("dev  leader a", "standby b", "3 instances in 1 group  ● 3 ready", "web      3/3  ●●●")

    # A group, an instance with what its agent measured, and back.
    window.press("Enter")
    window.until("web  in dev", *instances, "latest events", "Esc back")
    window.press("Down", "Enter")
    shown = window.until("usage       load ", "memory ", "registered", "now ")
    assert sum(each in "\n".join(shown) for each in instances) == 1
    window.press("Escape", "Escape")
    window.until("GROUP", "3/3")

    # A filter.
    window.press("2", "/")
    window.type(instances[1][-6:])
    window.press("Enter")
    assert instances[0] not in "\n".join(window.until(f"filter: {instances[1][-6:]}", instances[1]))
    window.press("Escape")
    window.until(*instances)

    # Resized, also below what it needs.
    window.resize(30, 8)
    window.until("too small: 30x8")
    window.resize(200, 60)
    window.until("ADDRESS", *instances)

    # The leader is killed, then an agent: every event of both leaders is there, once.
    window.press("3")
    world.servers["a"].kill()
    window.until("leader b")
    world.kill_agent(instances[0])
    wait_for("a replacement runs", lambda: (r := world.running(3)()) and instances[0] not in r and r)
    wait_for("it is ready", lambda: sum(each["reason"] == "ready" for each in events(environment)) >= 4)
    expected = events(environment)
    assert len(expected) < 50
    wanted = Counter((each["time"][11:19], each["reason"]) for each in expected)

    def are_shown() -> bool:
        shown = [line for line in window.lines() if line[8:11] == "Z  "]
        return Counter((line[:8], line[11:].split()[0]) for line in shown) == wanted

    window.until(*(each["message"] for each in expected), "● 3 ready")
    wait_for(f"exactly these events are shown: {wanted}", are_shown)

    window.press("q")
    window.until("ended with 0")


def test_top_without_color_and_without_unicode_is_still_readable(window: Terminal) -> None:
    window.start("top", size=(120, 40), NO_COLOR="1", LC_ALL="C")
    window.until("3 instances in 1 group  # 3 ready", "web      3/3  ###", "> ")
    assert re.search(r"\x1b\[(\d+;)*[349][0-7]", window.colors()) is None  # no color is set
    window.press("C-c")
    window.until("ended with 0")


def test_a_terminal_that_cannot_be_drawn_on_is_refused_with_advice(window: Terminal) -> None:
    window.start("top", size=(120, 40), TERM="dumb")
    window.until("status --watch", "ended with 1")


def test_status_is_redrawn_and_says_when_nobody_leads(world: ShardWorld, window: Terminal) -> None:
    window.start("status", "--watch", "--interval", "300ms", size=(80, 24))
    window.until("shard dev  leader a", "web 3", "every 0.3 s, Ctrl-C ends")
    world.servers["a"].kill()
    window.until("shard dev  leader b")
    world.servers["b"].kill()
    window.until("shard dev  does not answer")
    window.press("C-c")
    window.until("ended with 0")


def test_a_wait_shows_counts_on_a_terminal_and_ends_when_all_is_done(world: ShardWorld, window: Terminal) -> None:
    world.kill_agent(sorted(world.records())[0])
    wait_for("it is noticed", lambda: len(world.records()) > 3)
    window.start("wait", "web", "--within", "5m", size=(80, 24))
    window.until("stable", "ended with 0")
    assert len(wait_for("the group is whole", world.running(3))) == 3


def test_a_written_config_is_waited_for(world: ShardWorld, environment: dict[str, str], window: Terminal) -> None:
    file = world.home / "larger.jsonc"
    file.write_text(json.dumps(settings(world, web={"template": "plain", "size": 4})))
    window.start("cluster", "config", "put", str(file), "--wait", "--within", "5m", size=(120, 40))
    window.until("/1", "web ", "ready")  # a step of one, and what is missing
    window.until("stable", "ended with 0")
    assert world.running(4)()
    unknown = {**environment, "NSTANCE_ADMIN_SERVERS": "other=127.0.0.1:1"}
    refused = CliRunner().invoke(main.root, ["cluster", "config", "put", str(file), "--wait"], env=unknown)
    assert refused.exit_code == 2
    assert "--wait needs the servers of shard dev" in refused.stderr
