"""With `--log-format json`, every line that a program writes to standard error is one JSON object."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from component.admin_shell import operator_addresses, shell
from component.whole_server import SHARD, World, config
from nstance.clock import SystemClock, SystemRng
from nstance.config.addresses import Service
from nstance.model import ids
from support import ports
from support.eventually import wait_for

PROGRAMS = Path(sys.executable).parent
FIELDS = {"time", "level", "program", "component", "message"}
LEVELS = {"debug", "info", "warning", "error", "critical"}

Lines = list[dict[str, Any]]


def run(
    words: list[str], enough: Callable[[Lines], bool], dir: Path, environment: Mapping[str, str] | None = None
) -> Lines:
    """What the program logs until it is enough, and while it stops."""
    log = dir / "log"
    variables = {"PATH": os.environ["PATH"], "HOME": str(dir), **(environment or {})}
    with log.open("wb") as stderr:
        process = subprocess.Popen([PROGRAMS / words[0], *words[1:]], stderr=stderr, env=variables, cwd=dir)
        try:
            wait_for(f"{words[0]} logs enough", lambda: process.poll() is not None or enough(complete_lines(log)))
            process.terminate()
            process.wait(60)
        finally:
            process.kill()
            process.wait()
    assert log.read_bytes().endswith(b"\n")
    found = complete_lines(log)
    assert found
    assert enough(found), found
    for line in found:
        assert line.keys() >= FIELDS
        assert line["program"] == words[0]
        assert line["level"] in LEVELS
    return found


def complete_lines(log: Path) -> Lines:
    """Every complete line. One that is not JSON fails the test."""
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]]


def logs(message: str) -> Callable[[Lines], bool]:
    return lambda lines: any(message in line["message"] for line in lines)


def test_a_server_names_instance_and_trace(tmp_path: Path) -> None:
    groups = {"default": {"web": {"template": "web", "size": 1}}}
    with ports.claimed() as base:
        settings = config(groups=groups)
        settings["shard"]["bind"] = {each.key: f"127.0.0.1:{base + number}" for number, each in enumerate(Service)}
        stored = tmp_path / "bucket" / "shard" / "zone-a" / "config.jsonc"
        stored.parent.mkdir(parents=True)
        stored.write_text(json.dumps(settings))
        words = ["nstance-server", "--shard", "zone-a", "--storage", "file", "--bucket", str(tmp_path / "bucket")]
        words += ["--cachedir", str(tmp_path / "cache"), "--insecure-dev", "--log-format", "json"]
        lines = run(words, logs("scaling up"), tmp_path)
    [made] = [line for line in lines if line["message"].startswith("scaling up")]
    assert made["group"] == "default/web"
    assert ids.is_instance_id(made["instance"])
    assert len(bytes.fromhex(made["trace_id"])) == 16


def test_a_server_that_cannot_run_says_so_in_json(tmp_path: Path) -> None:
    words = ["nstance-server", "--shard", "zone-a", "--storage", "file", "--bucket", str(tmp_path / "missing")]
    words += ["--cachedir", str(tmp_path / "cache"), "--log-format", "json"]
    run(words, logs("failed to start"), tmp_path)


def test_an_agent_names_its_instance_in_every_line(tmp_path: Path) -> None:
    instance = ids.IdMaker(wall=SystemClock().wall, bits=SystemRng().bits).make(ids.Kind("web"))
    environment = {
        "NSTANCE_SERVER_REGISTRATION_ADDR": "127.0.0.1:9",
        "NSTANCE_SERVER_AGENT_ADDR": "127.0.0.1:9",
        "NSTANCE_INSTANCE_ID": instance,
        "NSTANCE_IDENTITY_DIR": str(tmp_path / "identity"),
        "NSTANCE_KEYS_DIR": str(tmp_path / "keys"),
        "NSTANCE_RECV_DIR": str(tmp_path / "recv"),
        "NSTANCE_LOG_FORMAT": "json",
    }
    lines = run(["nstance-agent"], logs("failed to run"), tmp_path, environment)  # it has no CA
    assert {line["instance"] for line in lines} == {instance}


def test_an_agent_without_settings(tmp_path: Path) -> None:
    [line, *_] = run(["nstance-agent", "--log-format", "json"], logs("failed to run"), tmp_path)
    assert "NSTANCE_" in line["error"]


def test_an_operator(tmp_path: Path) -> None:
    words = ["nstance-operator", "--log-format", "json", "--config", str(tmp_path / "none.yaml")]
    words += ["--health-probe-bind-address", "0", "--disable-webhooks"]
    run(words, logs("failed to run"), tmp_path)


async def test_admin_serve(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world)
        with ports.claimed() as base:
            words = ["nstance-admin", "serve", "--servers", f"{SHARD}={operator_addresses(world)}"]
            words += ["--identity-dir", str(admin.identity), "--bind", f"127.0.0.1:{base}", "--log-format", "json"]
            await asyncio.to_thread(run, words, logs("serving"), tmp_path)


def test_admin_serve_that_cannot_run(tmp_path: Path) -> None:
    words = ["nstance-admin", "serve", "--servers", "zone-a=127.0.0.1:9", "--identity-dir", str(tmp_path / "none")]
    [line] = run([*words, "--log-format", "json"], logs("failed to run"), tmp_path)
    assert "none" in line["error"]
