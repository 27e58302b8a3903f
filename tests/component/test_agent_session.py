"""An agent in this process against a real server over real TLS."""

import asyncio
import contextlib
import logging
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from component.agent_server import AgentServer, eventually
from nstance.agent import departure, files, life, onreceive, session, settings
from nstance.agent.folder import Unusable
from nstance.clock import SystemChance, SystemClock
from nstance.model.ids import InstanceId
from nstance.pki import keys as pki_keys
from nstance.v1 import agent_pb2
from nstance.wire import status
from support import ports


class QuickChance(SystemChance):
    """Waits as short as they may be, but never so short that a loop spins."""

    def uniform(self, low: float, high: float) -> float:
        return min(high, low + 0.01)


class Agent:
    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home = home
        self.environment = environment
        self._stop, self.going_down = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def identity(self) -> Path:
        return self.home / "identity"

    @property
    def recv(self) -> Path:
        return self.home / "recv"

    def received(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.recv.iterdir()} if self.recv.exists() else {}

    def start(self, **more: str) -> None:
        self._stop, self.going_down = asyncio.Event(), asyncio.Event()
        given = settings.read(self.environment | more)
        self._task = asyncio.create_task(
            life.live(given, stop=self._stop, going_down=self.going_down, clock=SystemClock(), chance=QuickChance())
        )

    async def stop(self) -> None:
        """As SIGTERM does. Raises what ended the agent, if something did."""
        self._stop.set()
        if self._task is not None:
            task, self._task = self._task, None
            await asyncio.wait_for(task, 30)

    async def crash(self) -> None:
        assert self._task is not None
        task, self._task = self._task, None
        task.cancel()
        await asyncio.wait({task})

    @property
    def ended(self) -> bool:
        return self._task is None or self._task.done()


@pytest.fixture
async def server() -> AsyncIterator[AgentServer]:
    async with AgentServer().running() as running:
        yield running


@pytest.fixture
def instance(server: AgentServer) -> InstanceId:
    return server.new_instance()


@pytest.fixture
async def agent(server: AgentServer, instance: InstanceId, tmp_path: Path) -> AsyncIterator[Agent]:
    made = Agent(tmp_path / "home", server.prepare(tmp_path / "home", instance))
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def system_state(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What systemd says in this test."""
    says: list[str | None] = ["running"]

    async def state() -> str | None:
        return says[0]

    monkeypatch.setattr(departure, "_system_state", state)
    return says


# Registering.


async def test_registers_and_reports_at_once(server: AgentServer, agent: Agent, instance: InstanceId) -> None:
    agent.start(NSTANCE_INSTANCE_IPV4="10.1.2.3", NSTANCE_INSTANCE_HOSTNAME="worker-1")
    report = (await eventually(lambda: server.heard.reports))[0]
    assert (report.sequence, report.instance_id, report.config_hash) == (1, instance, "")
    assert report.uptime_seconds > 0
    [request] = server.heard.registrations
    assert (request.ipv4, request.hostname) == ("10.1.2.3", "worker-1")
    assert sorted(path.name for path in agent.identity.iterdir()) == ["ca.crt", "identity.crt", "identity.key", "shard"]
    for name in ("identity.crt", "identity.key"):
        assert stat.S_IMODE((agent.identity / name).stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate((agent.identity / "identity.crt").read_bytes())
    private = pki_keys.private_key_from_pem((agent.identity / "identity.key").read_bytes())
    assert certificate.public_key() == private.public_key()


async def test_with_a_certificate_on_disk_it_does_not_register_again(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    await agent.stop()
    (agent.identity / "nonce.jwt").write_text("left behind by userdata that ran again")
    agent.start()
    await eventually(lambda: server.heard.connections == 2)
    assert len(server.heard.registrations) == 1
    assert not (agent.identity / "nonce.jwt").exists()


async def test_an_expired_certificate_is_tried_without_a_nonce_and_replaced_with_one(
    server: AgentServer, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose clock is right is for the server to say (F22); a nonce settles it."""
    server.agent_life, server.registered_age = 3 * 86400.0, 10 * 86400.0
    agent.start()
    await eventually(lambda: "no connection" in caplog.text)
    await agent.stop()
    agent.start()
    await eventually(lambda: "expired by this machine's clock" in caplog.text)
    assert not agent.ended
    await agent.stop()
    assert len(server.heard.registrations) == 1
    server.registered_age = 0.0
    (agent.identity / "nonce.jwt").write_text(server.nonce(InstanceId(agent.environment["NSTANCE_INSTANCE_ID"])))
    agent.start()
    await eventually(lambda: server.heard.reports)
    assert len(server.heard.registrations) == 2


async def test_a_lost_answer_is_asked_for_again_with_the_same_key_f8(server: AgentServer, agent: Agent) -> None:
    server.scripts.lose_register_replies = 2
    agent.start()
    await eventually(lambda: server.heard.reports)
    assert len(server.heard.registrations) == 3
    assert len({request.public_key_pem for request in server.heard.registrations}) == 1


async def test_killed_while_registering_it_comes_back_with_the_same_key_f8(server: AgentServer, agent: Agent) -> None:
    server.scripts.lose_register_replies = 1
    agent.start()
    await eventually(lambda: server.heard.registrations)
    await agent.crash()
    agent.start()
    await eventually(lambda: server.heard.reports)
    assert len({request.public_key_pem for request in server.heard.registrations}) == 1


async def test_servers_that_cannot_now_are_asked_again(server: AgentServer, agent: Agent) -> None:
    server.scripts.register.extend([status.unavailable("not leading"), status.exhausted("too many"), None])
    agent.start()
    await eventually(lambda: server.heard.reports)
    assert len(server.heard.registrations) == 3


async def test_a_refused_nonce_is_final_but_the_agent_stays(
    server: AgentServer, agent: Agent, caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    (agent.identity / "nonce.jwt").write_text(AgentServer().nonce(InstanceId(agent.environment["NSTANCE_INSTANCE_ID"])))
    agent.start(NSTANCE_HEALTH_ADDR=f"127.0.0.1:{free_port}")
    await eventually(lambda: server.heard.registrations)
    await eventually(lambda: "nonce was refused" in caplog.text)
    assert await _get(free_port, "/healthz") == ("503 Service Unavailable", "the registration nonce was refused\n")
    assert not agent.ended
    assert len(server.heard.registrations) == 1


async def test_losing_the_identity_directory_does_not_give_a_second_identity_f61(
    server: AgentServer, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    spent = (agent.identity / "nonce.jwt").read_text()
    agent.start()
    await eventually(lambda: server.heard.reports)
    await agent.stop()
    for name in ("identity.key", "identity.crt"):
        (agent.identity / name).unlink()
    (agent.identity / "nonce.jwt").write_text(spent)
    agent.start()
    await eventually(lambda: "nonce was refused" in caplog.text)
    assert not (agent.identity / "identity.crt").exists()


async def test_without_nonce_and_certificate_it_ends_with_a_clear_error(agent: Agent) -> None:
    (agent.identity / "nonce.jwt").unlink()
    agent.start()
    await eventually(lambda: agent.ended)
    with pytest.raises(Unusable, match="no certificate and no nonce"):
        await agent.stop()


async def test_the_nonce_of_another_instance_is_not_sent(server: AgentServer, agent: Agent) -> None:
    (agent.identity / "nonce.jwt").write_text(server.nonce(server.new_instance()))
    agent.start()
    await eventually(lambda: agent.ended)
    with pytest.raises(Unusable, match="the nonce is for instance"):
        await agent.stop()
    assert server.heard.registrations == []


async def test_an_image_of_a_running_instance_gets_its_own_identity(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    await agent.stop()
    clone = server.new_instance()
    (agent.identity / "nonce.jwt").write_text(server.nonce(clone))
    agent.start(NSTANCE_INSTANCE_ID=clone)
    await eventually(lambda: server.heard.reports[-1].instance_id == clone)
    assert len({request.public_key_pem for request in server.heard.registrations}) == 2


async def test_a_server_of_another_shard_or_ca_is_not_talked_to(server: AgentServer, agent: Agent) -> None:
    other = AgentServer(shard=server.shard)
    stranger = AgentServer(shard=type(server.shard)("dev-2"))
    stranger.ca = server.ca
    async with other.running(), stranger.running():
        ports = [str(s.registration.port) for s in (other, stranger, server)]
        agent.start(NSTANCE_SERVER_REGISTRATION_ADDR=",".join(f"127.0.0.1:{port}" for port in ports))
        await eventually(lambda: server.heard.reports)
        assert other.heard.registrations == stranger.heard.registrations == []


# Staying connected.


async def test_after_registering_it_talks_only_to_servers_of_its_shard(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    await agent.stop()
    stranger = AgentServer(shard=type(server.shard)("dev-2"))
    stranger.ca = server.ca
    async with stranger.running():
        agent.start(NSTANCE_SERVER_AGENT_ADDR=f"127.0.0.1:{stranger.agents.port},127.0.0.1:{server.agents.port}")
        await eventually(lambda: len(server.heard.reports) == 2)
        assert stranger.heard.connections == 0


async def test_reports_by_interval_and_counts_them(server: AgentServer, agent: Agent) -> None:
    server.report_interval = 0.1
    agent.start()
    reports = await eventually(lambda: len(server.heard.reports) >= 4 and server.heard.reports)
    assert [report.sequence for report in reports[:4]] == [1, 2, 3, 4]
    assert len({report.boot_id for report in reports}) == 1


async def test_sequences_begin_anew_with_a_new_boot_id_f62(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    await agent.stop()
    agent.start()
    first, second = await eventually(lambda: len(server.heard.reports) == 2 and server.heard.reports)
    assert (first.sequence, second.sequence) == (1, 1)


async def test_after_a_lost_connection_it_comes_back_and_goes_on_counting(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    for count in (2, 3):
        server.cut()
        await eventually(lambda count=count: len(server.heard.reports) == count)
    assert [report.sequence for report in server.heard.reports] == [1, 2, 3]
    assert len({report.boot_id for report in server.heard.reports}) == 1


async def test_a_server_that_restarts_is_found_again(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    await server.stop()
    await server.start()
    await eventually(lambda: len(server.heard.reports) == 2)


async def test_each_stream_is_opened_again_on_its_own(server: AgentServer, agent: Agent) -> None:
    server.scripts.files.extend([status.unavailable("the secret store is away"), None])
    server.scripts.key_requests.extend([status.exhausted("later"), None])
    server.key_names = ["a"]
    agent.start()
    await eventually(lambda: len(server.heard.file_requests) == 2 and server.heard.keys)
    assert server.heard.connections == 1


async def test_a_health_stream_that_is_refused_is_opened_again(server: AgentServer, agent: Agent) -> None:
    server.scripts.health.extend([status.denied("the instance is deleted"), status.exhausted("later"), None])
    agent.start()
    await eventually(lambda: server.heard.reports)
    assert server.heard.connections == 3


async def test_a_server_that_does_not_lead_is_left_for_the_next(
    server: AgentServer, agent: Agent, instance: InstanceId
) -> None:
    standby = AgentServer()
    standby.ca = server.ca
    standby.scripts.health.extend([status.unavailable("not leading")] * 100)
    async with standby.running():
        agent.start(NSTANCE_SERVER_AGENT_ADDR=f"127.0.0.1:{standby.agents.port},127.0.0.1:{server.agents.port}")
        await eventually(lambda: server.heard.reports)
        assert standby.heard.connections == 1


async def test_no_periodic_reports_when_told_so(server: AgentServer, agent: Agent) -> None:
    server.report_interval = 0.1
    agent.start(NSTANCE_REPORT_INTERVAL="0")
    await eventually(lambda: server.heard.reports)
    server.push({"a": b""}, "sha256:1")
    await eventually(lambda: server.heard.reports[-1].config_hash == "sha256:1")
    assert len(server.heard.reports) == 2, "the one on connecting and the one about the files"


# Keys and files.


async def test_makes_keys_and_sends_the_public_halves(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.key_streams)
    server.ask_keys(["netsy.server", "netsy.peer"])
    [sent] = await eventually(lambda: server.heard.keys)
    assert sent == {name: (agent.home / "keys" / f"{name}.pub").read_text() for name in ("netsy.server", "netsy.peer")}
    assert stat.S_IMODE((agent.home / "keys" / "netsy.server.key").stat().st_mode) == 0o640


async def test_keys_that_could_not_be_submitted_are_submitted_again(server: AgentServer, agent: Agent) -> None:
    server.key_names = ["a"]
    server.scripts.submit_keys.extend([status.unavailable("not leading"), None])
    agent.start()
    assert await eventually(lambda: server.heard.keys) == [{"a": (agent.home / "keys" / "a.pub").read_text()}]


async def test_a_request_for_a_bad_key_name_is_reported_b21(server: AgentServer, agent: Agent) -> None:
    server.key_names = ["../../etc/shadow"]
    agent.start()
    report = await eventually(lambda: next((r for r in server.heard.reports if r.files_error), None))
    assert "refused" in report.files_error
    server.ask_keys(["good"])
    await eventually(lambda: server.heard.keys and server.heard.reports[-1].files_error == "")


async def test_files_arrive_and_are_reported(server: AgentServer, agent: Agent) -> None:
    server.push({"config.jsonc": b"{/* hello */}", "big.bin": b"x" * (1 << 20)}, "sha256:1")
    agent.start()
    report = await eventually(lambda: next((r for r in server.heard.reports if r.config_hash), None))
    assert report.config_hash == "sha256:1"
    assert {state.name for state in report.files} == {"config.jsonc", "big.bin"}
    assert (agent.identity / "config.hash").read_text() == "sha256:1\n"
    server.push({"config.jsonc": b"{}"}, "sha256:2")
    await eventually(lambda: server.heard.reports[-1].config_hash == "sha256:2")
    assert agent.received() == {"config.jsonc": b"{}"}


async def test_certificates_are_reported_with_serial_and_expiry(
    server: AgentServer, agent: Agent, instance: InstanceId
) -> None:
    pem = server.issue(instance, pki_keys.public_bytes(pki_keys.generate(server.chance))).certificate_pem
    server.push({"server.crt": pem.encode()}, "sha256:1")
    agent.start()
    report = await eventually(lambda: next((r for r in server.heard.reports if r.config_hash), None))
    certificate = x509.load_pem_x509_certificate(pem.encode())
    [state] = report.files
    assert (int(state.serial, 16), len(state.serial)) == (certificate.serial_number, 32)
    assert state.expires_unix == int(certificate.not_valid_after_utc.timestamp())


@pytest.mark.parametrize(
    ("files", "count", "said"),
    [
        ({"good.txt": b"", "bad.json": b"{"}, 2, "expected JSON"),
        ({"good.txt": b"", "../up": b""}, 2, "starts with a dot"),
        ({"good.txt": b"", "x": b"x" * (1 << 20) + b"x"}, 2, "at most 1048576 bytes"),
        ({"good.txt": b""}, 2, "expected 2 files"),
    ],
)
async def test_a_bad_set_changes_nothing_and_is_reported_with_the_reason_b21_b22(
    server: AgentServer, agent: Agent, files: dict[str, bytes], count: int, said: str
) -> None:
    server.push({"old.txt": b"old"}, "sha256:1")
    agent.start()
    await eventually(lambda: server.heard.reports and server.heard.reports[-1].config_hash == "sha256:1")
    server.push(files, "sha256:2", count=count)
    report = await eventually(lambda: next((r for r in server.heard.reports if r.files_error), None))
    assert said in report.files_error
    assert report.config_hash == "sha256:1"
    assert agent.received() == {"old.txt": b"old"}
    server.push({"new.txt": b"new"}, "sha256:3")
    await eventually(lambda: server.heard.reports[-1].config_hash == "sha256:3")
    assert server.heard.reports[-1].files_error == ""
    assert agent.received() == {"new.txt": b"new"}


async def test_a_set_cut_in_the_middle_leaves_the_old_one_f63(server: AgentServer, agent: Agent) -> None:
    server.push({"old.txt": b"old"}, "sha256:1")
    agent.start()
    await eventually(lambda: server.heard.reports and server.heard.reports[-1].config_hash == "sha256:1")
    whole = server.file_set({"new.txt": b"new", "more.txt": b"more"}, "sha256:2")
    server.sets = whole[:1]  # the first file and no more
    server.cut()
    await eventually(lambda: (agent.recv / ".incoming-2" / "new.txt").exists())
    assert (agent.recv / "old.txt").read_bytes() == b"old"
    server.sets = whole
    server.cut()
    await eventually(lambda: server.heard.reports[-1].config_hash == "sha256:2")
    assert agent.received() == {"new.txt": b"new", "more.txt": b"more"}


async def test_on_reconnect_it_says_what_it_has(server: AgentServer, agent: Agent) -> None:
    server.push({"a.txt": b"a"}, "sha256:1")
    agent.start()
    await eventually(lambda: server.heard.reports and server.heard.reports[-1].config_hash == "sha256:1")
    server.sets = []
    server.cut()
    await eventually(lambda: len(server.heard.file_requests) == 2)
    assert server.heard.file_requests[1].config_hash == "sha256:1"
    assert [state.name for state in server.heard.file_requests[1].files] == ["a.txt"]


async def test_the_command_runs_after_each_set_and_not_for_the_same_one(
    server: AgentServer, agent: Agent, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    command = f"sh -c 'cat {agent.recv}/a.txt >> {runs}'"
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=command)
    await eventually(lambda: runs.exists() and runs.read_text() == "1")
    await eventually(lambda: (agent.identity / "on-receive.done").exists())
    server.push({"a.txt": b"1"}, "sha256:1")
    server.push({"a.txt": b"2"}, "sha256:2")
    await eventually(lambda: runs.read_text() == "12")
    await eventually(lambda: (agent.identity / "on-receive.done").exists())
    (agent.identity / "on-receive.done").unlink()  # as if it had stopped before the command ended
    await agent.stop()
    agent.start(NSTANCE_ON_RECEIVE=command)
    await eventually(lambda: runs.read_text() == "122")


async def test_a_command_that_hangs_or_fails_is_said_and_does_not_stop_the_files(
    server: AgentServer, agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onreceive.OnReceive.__init__, "__kwdefaults__", {"timeout": 0.2})
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=f"sh -c 'grep -q 1 {agent.recv}/a.txt && sleep 600; exit 3'")
    await eventually(lambda: "did not end in time" in caplog.text)
    server.push({"a.txt": b"2"}, "sha256:2")
    await eventually(lambda: "NSTANCE_ON_RECEIVE failed" in caplog.text)
    assert agent.received() == {"a.txt": b"2"}


async def test_a_set_is_acted_upon_even_if_the_connection_is_gone_by_then(
    server: AgentServer, agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, begun, go_on = files.Incoming.commit, threading.Event(), threading.Event()

    def slow(self: files.Incoming, config_hash: str, count: int) -> bool:
        begun.set()
        assert go_on.wait(10)
        return real(self, config_hash, count)

    monkeypatch.setattr(files.Incoming, "commit", slow)
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=f"touch {tmp_path}/ran")
    await eventually(begun.is_set)
    server.sets = []
    server.cut()
    await eventually(lambda: server.heard.connections == 2)
    go_on.set()
    await eventually((tmp_path / "ran").exists)


async def test_a_command_that_was_cut_short_runs_again_at_the_next_start(
    server: AgentServer, agent: Agent, tmp_path: Path
) -> None:
    runs, hold = tmp_path / "runs", tmp_path / "hold"
    command = f"sh -c 'cat {agent.recv}/a.txt >> {runs}; while [ -e {hold} ]; do sleep 0.01; done'"
    server.push({"a.txt": b"1"}, "sha256:1")
    agent.start(NSTANCE_ON_RECEIVE=command)
    await eventually(lambda: (agent.identity / "on-receive.done").exists())
    hold.touch()
    server.push({"a.txt": b"2"}, "sha256:2")
    await eventually(lambda: runs.read_text() == "12")
    await agent.crash()
    hold.unlink()
    server.sets = []
    agent.start(NSTANCE_ON_RECEIVE=command)
    await eventually(lambda: runs.read_text() == "122")


# Notices, leaving, renewal.


async def test_a_shutdown_notice_is_sent_at_once_and_again_after_reconnecting(
    server: AgentServer, agent: Agent, system_state: list[str | None]
) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    agent.going_down.set()
    server.cut()
    await eventually(lambda: len(server.heard.reports) == 2)
    assert server.heard.notices == [], "nobody but the signal says so"
    system_state[0] = "stopping"
    agent.going_down.set()
    await eventually(lambda: server.heard.notices)
    server.cut()
    await eventually(lambda: len(server.heard.notices) == 2)
    assert {notice.kind for notice in server.heard.notices} == {agent_pb2.Notice.SHUTDOWN}


@pytest.mark.parametrize(
    ("state", "reason", "notices"),
    [("running", agent_pb2.Goodbye.RESTART, 0), ("stopping", agent_pb2.Goodbye.SHUTDOWN, 1)],
)
async def test_says_goodbye_with_the_reason(
    server: AgentServer, agent: Agent, system_state: list[str | None], state: str, reason: int, notices: int
) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    system_state[0] = state
    await agent.stop()
    assert [goodbye.reason for goodbye in server.heard.goodbyes] == [reason]
    assert len(server.heard.notices) == notices
    assert server.heard.messages[-1].WhichOneof("kind") == "goodbye"


async def test_it_waits_until_the_goodbye_was_heard(
    server: AgentServer, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GOODBYE_SECONDS", 60.0)
    monkeypatch.setattr(life, "STOP_SECONDS", 60.0)
    server.hold_goodbyes = asyncio.Event()
    agent.start()
    await eventually(lambda: server.heard.reports)
    stopping = asyncio.create_task(agent.stop())
    await eventually(lambda: server.heard.goodbyes)
    done, _ = await asyncio.wait({stopping}, timeout=0.3)
    assert not done
    server.hold_goodbyes.set()
    await stopping


async def test_without_a_server_it_leaves_all_the_same(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    await server.stop()
    await agent.stop()
    await server.start()


async def test_renews_at_two_thirds_with_the_bundle_and_uses_the_new_certificate(
    server: AgentServer, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.agent_life, server.registered_age = 3 * 86400.0, 2.5 * 86400.0
    server.renewal_bundle = AgentServer(cluster=server.cluster).ca.pem + server.ca.pem
    (agent.identity / "ca.crt").chmod(0o644)
    agent.start()
    await eventually(lambda: "certificate renewed" in caplog.text)
    assert (agent.identity / "ca.crt").read_text() == server.renewal_bundle
    assert stat.S_IMODE((agent.identity / "ca.crt").stat().st_mode) == 0o644, "workloads read it too"
    renewed = x509.load_pem_x509_certificate((agent.identity / "identity.crt").read_bytes())
    assert renewed.not_valid_after_utc > datetime.now(UTC) + timedelta(days=2)
    reports = len(await eventually(lambda: server.heard.reports))
    server.cut()
    await eventually(lambda: len(server.heard.reports) > reports)
    assert (len(server.heard.registrations), server.heard.renewals) == (1, 1)


async def test_a_fresh_certificate_is_not_renewed(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.heard.reports)
    server.cut()
    await eventually(lambda: len(server.heard.reports) == 2)
    assert server.heard.renewals == 0


async def test_a_renewal_that_fails_costs_nothing_else(server: AgentServer, agent: Agent) -> None:
    server.agent_life, server.registered_age = 3 * 86400.0, 2.5 * 86400.0
    server.scripts.renew.append(status.unavailable("the CA is away"))
    agent.start()
    await eventually(lambda: server.heard.renewals)
    server.push({"a.txt": b""}, "sha256:1")
    await eventually(lambda: server.heard.reports and server.heard.reports[-1].config_hash == "sha256:1")
    assert server.heard.connections == 1


async def test_a_certificate_for_somebody_else_is_not_kept(
    server: AgentServer, agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    issue = server.issue
    monkeypatch.setattr(server, "issue", lambda _, public, **more: issue(server.new_instance(), public, **more))
    agent.start()
    await eventually(lambda: "cannot keep the certificate" in caplog.text)
    assert not (agent.identity / "identity.crt").exists()
    assert (agent.identity / "nonce.jwt").exists()


# The health endpoint.


@pytest.fixture
def free_port() -> Iterator[int]:
    with ports.claimed() as port:
        yield port


async def _get(port: int, path: str, *, method: str = "GET") -> tuple[str, str]:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return head.split("\r\n")[0].removeprefix("HTTP/1.1 "), body


async def test_the_health_endpoint_is_green_once_registered(server: AgentServer, agent: Agent, free_port: int) -> None:
    server.scripts.register.extend([status.unavailable("not leading")] * 1000)
    agent.start(NSTANCE_HEALTH_ADDR=f"127.0.0.1:{free_port}")
    await eventually(lambda: server.heard.registrations)
    assert await _get(free_port, "/healthz") == ("503 Service Unavailable", "not registered yet\n")
    server.scripts.register.clear()
    await eventually(lambda: server.heard.reports)
    assert await _get(free_port, "/healthz") == ("200 OK", "ok")
    assert await _get(free_port, "/healthz", method="HEAD") == ("200 OK", "")
    assert (await _get(free_port, "/metrics"))[0] == "404 Not Found"
    assert (await _get(free_port, "/healthz", method="POST"))[0] == "405 Method Not Allowed"


async def test_two_agents_do_not_share_an_identity(
    server: AgentServer, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "LOCK_SECONDS", 0.1)
    agent.start()
    await eventually(lambda: server.heard.reports)
    second = Agent(agent.home, agent.environment)
    second.start()
    await eventually(lambda: second.ended)
    with pytest.raises(Unusable, match="another nstance-agent"):
        await second.stop()


def test_the_version_is_the_package_s() -> None:
    from importlib.metadata import version

    from nstance.agent.version import VERSION

    assert version("nstance") == VERSION
