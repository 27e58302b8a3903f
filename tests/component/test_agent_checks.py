"""Readiness checks against real sockets and processes, and a real agent that reports them over TLS."""

import asyncio
import contextlib
import os
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from component import agent_world
from component.agent_server import AgentServer
from component.agent_world import Agent
from nstance.agent.checks import probes
from nstance.pki import ca, keys, names
from nstance.v1 import agent_pb2
from nstance.wire import tls
from support.eventually import eventually

agent = agent_world.agent
instance = agent_world.instance
server = agent_world.server
system_state = agent_world.system_state
free_port = agent_world.free_port


class Http:
    """Answers every request with `answer`; None: says nothing."""

    def __init__(self) -> None:
        self.answer: bytes | None = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        self.asked: list[str] = []
        self.port = 0
        self.serving = 0

    @contextlib.asynccontextmanager
    async def running(self, *, port: int = 0, host: str = "127.0.0.1", context: object = None) -> AsyncIterator["Http"]:
        async with await asyncio.start_server(self._serve, host, port, ssl=context) as server:  # type: ignore[arg-type]
            self.port = server.sockets[0].getsockname()[1]
            yield self
            await eventually(lambda: not self.serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            if self.answer is None:
                await reader.read()
            else:
                writer.write(self.answer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self.serving -= 1


def http(port: int, *, path: str = "", tls: bool = False, timeout_ms: int = 30_000) -> agent_pb2.Check:
    return agent_pb2.Check(
        name="web", http=agent_pb2.HttpCheck(port=port, path=path, tls=tls), interval_ms=100, timeout_ms=timeout_ms
    )


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.0 204\r\n\r\n", ""),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", ""),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "http: answered 404"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "http: answered 500"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "http: answered 100"),
        (b"", "http: the connection was closed without an answer"),
        (b"SSH-2.0-OpenSSH\r\n", "http: expected an HTTP answer, found something else"),
        (b"x" * 100_000, "http: expected an HTTP answer, found something else"),
    ],
)
async def test_http_passes_from_200_to_399(answer: bytes, problem: str) -> None:
    async with Http().running() as web:
        web.answer = answer
        assert await probes.probe(http(web.port, path="/healthz?full=1")) == problem
        assert web.asked[0].startswith(f"GET /healthz?full=1 HTTP/1.1\r\nHost: localhost:{web.port}\r\n")


async def test_http_over_tls_takes_any_certificate(server: AgentServer) -> None:
    key = keys.generate(server.rng)
    issued = server.ca.issue_server(
        names.Server(server.cluster, server.shard, "srv-9"),  # type: ignore[arg-type]
        keys.public_bytes(key),
        serial=ca.new_serial(server.rng),
        issued=server.clock.wall() - 20,
        expires=server.clock.wall() - 10,
    )
    context = tls.server_context(certificate_pem=issued.pem, key_pem=keys.private_to_pem(key).encode(), ca_pem=None)
    context.set_alpn_protocols(["http/1.1"])
    async with Http().running(context=context) as web:
        assert await probes.probe(http(web.port, tls=True)) == ""
        assert (await probes.probe(http(web.port))).startswith("http: ")  # it does not speak that


async def test_nobody_listens_or_nobody_answers(free_port: int) -> None:
    port = free_port
    assert await probes.probe(http(port)) == "http: connection refused"
    tcp = agent_pb2.Check(name="t", tcp=agent_pb2.TcpCheck(port=port), timeout_ms=30_000)
    assert await probes.probe(tcp) == "connection refused"
    async with Http().running(port=port) as web:
        assert await probes.probe(tcp) == ""
        web.answer = None
        assert await probes.probe(http(port, timeout_ms=50)) == "no answer within 0.05 s"


async def test_a_service_on_ipv6_alone_is_found() -> None:
    try:
        async with Http().running(host="::1") as web:
            assert await probes.probe(http(web.port)) == ""
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")


def command(*argv: str, timeout_ms: int = 30_000) -> agent_pb2.Check:
    return agent_pb2.Check(name="c", command=agent_pb2.CommandCheck(argv=argv), timeout_ms=timeout_ms, interval_ms=100)


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (("true",), ""),
        (("sh", "-c", "echo fine; exit 0"), ""),
        (("false",), "exit code 1"),
        (("sh", "-c", "echo first; echo 'it is \x1b[31mred\x1b[0m' >&2; exit 7"), "exit code 7: it is [31mred[0m"),
        (("sh", "-c", "kill -9 $$"), "killed by signal 9"),
        (("/no/such/program",), "cannot be run: No such file or directory"),
        ((), "TypeError"),
        (("sh", "-c", "yes | head -c 1000000; echo; echo end; exit 1"), "exit code 1: end"),
    ],
)
async def test_a_command_passes_with_exit_code_0(argv: tuple[str, ...], problem: str) -> None:
    found = await probes.probe(command(*argv))
    assert found == problem or (problem == "TypeError" and found.startswith(problem))


async def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"echo $$ > {pids}; sleep 600 & echo $! >> {pids}; wait"
    found = await probes.probe(command("sh", "-c", script, timeout_ms=1000))
    assert found == "did not end within 1 s and was killed"

    def gone() -> bool:
        return not any(Path(f"/proc/{pid}/stat").exists() and _runs(pid) for pid in pids.read_text().split())

    await eventually(gone)


def _runs(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_daemon_that_a_command_leaves_behind_costs_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert await probes.probe(command("sh", "-c", "sleep 2 & exit 0")) == ""
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_a_unit_is_asked_for_where_there_is_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = agent_pb2.Check(name="u", systemd=agent_pb2.SystemdCheck(unit="nginx.service"), timeout_ms=30_000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "this machine has no systemd" in await probes.probe(unit)
    fake = tmp_path / "systemctl"
    fake.write_text('#!/bin/sh\n[ "$*" = "is-active -- nginx.service" ] || exit 9\necho inactive\nexit 3\n')
    fake.chmod(0o755)
    assert await probes.probe(unit) == "unit nginx.service is not active: inactive"
    fake.write_text("#!/bin/sh\necho active\n")
    assert await probes.probe(unit) == ""


async def test_a_check_of_a_kind_that_only_a_newer_agent_knows_fails_with_a_reason() -> None:
    assert "does not support this kind" in await probes.probe(agent_pb2.Check(name="x", timeout_ms=1000))


async def test_an_agent_runs_its_checks_and_reports_each_change_at_once(
    server: AgentServer, agent: Agent, tmp_path: Path, free_port: int
) -> None:
    up, port = tmp_path / "up", free_port
    server.checks = agent_pb2.CheckConfig(hash="sha256:c", checks=[http(port), command(*shlex.split(f"test -e {up}"))])
    server.checks.checks[0].failures = server.checks.checks[0].successes = 2
    agent.start(NSTANCE_REPORT_INTERVAL="0")  # only what is new is reported

    def results() -> dict[str, tuple[bool, str]]:
        last = server.last_seen.reports[-1] if server.last_seen.reports else agent_pb2.HealthReport()
        return {r.name: (r.passing, r.message) for r in last.checks} if last.checks_hash == "sha256:c" else {}

    failing = {"web": (False, "http: connection refused"), "c": (False, "exit code 1")}
    await eventually(lambda: results() == failing)
    up.touch()
    await eventually(lambda: results() == failing | {"c": (True, "")})
    async with Http().running(port=port):
        await eventually(lambda: results() == {"web": (True, ""), "c": (True, "")})
        server.checks = None
        server.cut()  # results outlive the connection
        await eventually(lambda: server.last_seen.connections == 2)
        first = await eventually(lambda: server.last_seen.reports[-1])
        assert first.checks_hash == "sha256:c"
        assert all(result.passing and result.since_unix_ms > 0 for result in first.checks)
