"""Readiness with real servers and agents: a service that is not up, and a secret that is missing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import ShardWorld, settings, shard_world
from e2e.test_admin_walk import PATIENCE, Terminal, open_terminal
from support.eventually import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


class _Up(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def service(port: int) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", port), _Up) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def document(world: ShardWorld, port: int, **files: Any) -> dict[str, Any]:
    made = settings(world, web={"template": "plain", "size": 2})
    made["templates"]["plain"]["checks"] = {
        "up": {"kind": "http", "port": port, "path": "/healthz", "interval": "200ms", "failures": 1}
    }
    made["templates"]["plain"]["files"] |= files
    return made


def ready(terminal: Terminal) -> list[bool]:
    return [each["ready"] for each in terminal.json("instance", "list", "--group", "web")]


def test_an_instance_counts_once_its_service_is_up_and_its_files_are_there(tmp_path: Path) -> None:
    with shard_world(tmp_path) as world:
        port = world.base + 40
        world.configure(document(world, port))
        server = world.start("s1")
        wait_for("a leader", world.leader)
        terminal = open_terminal(world, server)
        wait_for("two registered instances", world.running(2))
        wait_for("failing checks", lambda: _failing(terminal) == ["http: connection refused"] * 2)
        late = terminal("wait", "web", "--within", "1s")
        assert late.exit_code == 1
        assert "web 0/2 ready, 2 not ready: failing checks: up" in late.stderr
        assert not terminal.json("status")["shards"][0]["healthy"]
        assert server.metric('nstance_instances_ready{group="web",tenant="default"}') == 0.0
        with service(port):
            terminal.ok("wait", "web", "--within", PATIENCE)
            assert ready(terminal) == [True, True]
            assert terminal.json("status")["shards"][0]["healthy"]
            assert server.metric('nstance_instances_ready{group="web",tenant="default"}') == 2.0
            before = set(world.records())
            # A new file whose secret is missing: nobody is called ready, and nobody loses what he has.
            world.configure(document(world, port, token={"kind": "secret", "source": "web-token"}))
            terminal.ok("config", "refresh")
            late = terminal("wait", "web", "--within", "1s")
            assert late.exit_code == 1
            assert "blocked: token: " in late.stderr
            assert not terminal.json("status")["shards"][0]["healthy"]
            assert all((world.home_of(id) / "recv" / "motd").read_text().startswith("hello") for id in before)
            secret = tmp_path / "secret"
            secret.write_text("s3cret")
            terminal.ok("cluster", "secret", "put", "web-token", "--file", str(secret))
            terminal.ok("wait", "web", "--within", PATIENCE)
            assert {id for id in world.records() if world.agent(id)} >= before
            assert all((world.home_of(id) / "recv" / "token").read_text() == "s3cret" for id in before)
        wait_for("checks that fail again", lambda: ready(terminal) == [False, False])


def _failing(terminal: Terminal) -> list[str]:
    found = terminal.json("instance", "list", "--group", "web")
    return [check["message"] for each in found for check in each["checks"] if not check["passing"]]
