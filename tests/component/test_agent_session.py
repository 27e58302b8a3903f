"""An agent stays connected, gives notice, renews its certificate, and leaves."""

import asyncio
import logging
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from component import agent_world
from component.agent_server import AgentServer
from component.agent_world import Agent, get
from nstance.agent.files.folder import SetupError
from nstance.agent.settings import Waits
from nstance.model.ids import InstanceId
from nstance.v1 import agent_pb2
from nstance.wire import status
from support.eventually import eventually

agent = agent_world.agent
instance = agent_world.instance
server = agent_world.server
free_port = agent_world.free_port
system_state = agent_world.system_state


# Staying connected.


async def test_after_registering_it_talks_only_to_servers_of_its_shard(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    await agent.stop()
    stranger = AgentServer(shard=type(server.shard)("dev-2"))
    stranger.ca = server.ca
    async with stranger.running():
        agent.start(NSTANCE_SERVER_AGENT_ADDR=f"127.0.0.1:{stranger.agents.port},127.0.0.1:{server.agents.port}")
        await eventually(lambda: len(server.last_seen.reports) == 2)
        assert stranger.last_seen.connections == 0


async def test_reports_by_interval_and_counts_them(server: AgentServer, agent: Agent) -> None:
    server.report_interval = 0.1
    agent.start()
    reports = await eventually(lambda: len(server.last_seen.reports) >= 4 and server.last_seen.reports)
    assert [report.sequence for report in reports[:4]] == [1, 2, 3, 4]
    assert len({report.boot_id for report in reports}) == 1


async def test_sequences_begin_anew_with_a_new_boot_id(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    await agent.stop()
    agent.start()
    first, second = await eventually(lambda: len(server.last_seen.reports) == 2 and server.last_seen.reports)
    assert (first.sequence, second.sequence) == (1, 1)


async def test_after_a_lost_connection_it_comes_back_and_goes_on_counting(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    for count in (2, 3):
        server.cut()
        await eventually(lambda count=count: len(server.last_seen.reports) == count)
    assert [report.sequence for report in server.last_seen.reports] == [1, 2, 3]
    assert len({report.boot_id for report in server.last_seen.reports}) == 1


async def test_a_server_that_restarts_is_found_again(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    await server.stop()
    await server.start()
    await eventually(lambda: len(server.last_seen.reports) == 2)


async def test_each_reason_why_it_is_not_connected_is_a_warning_once(
    server: AgentServer, agent: Agent, caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    """The addresses are tried in turn, so a reason is never the last one's."""
    caplog.set_level(logging.DEBUG, "nstance.agent.session")

    def attempts(level: int) -> list[tuple[str, str, str]]:
        found = [vars(each) for each in caplog.records if each.levelno == level and "reconnecting" in each.message]
        found += [
            vars(each) for each in caplog.records if each.levelno == level and "failed to connect" in each.message
        ]
        return [(each["message"], each["server"], each["reason"]) for each in found]

    agent.start(NSTANCE_SERVER_AGENT_ADDR=f"127.0.0.1:{server.agents.port},127.0.0.1:{free_port}")
    await eventually(lambda: server.last_seen.reports)
    await server.stop()
    await eventually(lambda: len(attempts(logging.DEBUG)) >= 4)
    warnings = attempts(logging.WARNING)
    assert len(warnings) == len(set(warnings))
    assert len([tried for _, tried, _ in warnings if tried.endswith(f":{free_port}")]) == 1
    assert "connection to the server lost, reconnecting" in {message for message, _, _ in warnings}


async def test_each_stream_is_opened_again_on_its_own(server: AgentServer, agent: Agent) -> None:
    server.scripts.files.extend([status.unavailable("the secret store is away"), None])
    server.scripts.key_requests.extend([status.exhausted("later"), None])
    server.key_names = ["a"]
    agent.start()
    await eventually(lambda: len(server.last_seen.file_requests) == 2 and server.last_seen.keys)
    assert server.last_seen.connections == 1


async def test_a_health_stream_that_is_refused_is_opened_again(server: AgentServer, agent: Agent) -> None:
    server.scripts.health.extend([status.denied("the instance is deleted"), status.exhausted("later"), None])
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    assert server.last_seen.connections == 3


async def test_a_server_that_does_not_lead_is_left_for_the_next(
    server: AgentServer, agent: Agent, instance: InstanceId
) -> None:
    standby = AgentServer()
    standby.ca = server.ca
    standby.scripts.health.extend([status.unavailable("not leading")] * 100)
    async with standby.running():
        agent.start(NSTANCE_SERVER_AGENT_ADDR=f"127.0.0.1:{standby.agents.port},127.0.0.1:{server.agents.port}")
        await eventually(lambda: server.last_seen.reports)
        assert standby.last_seen.connections == 1


async def test_no_periodic_reports_when_switched_off(server: AgentServer, agent: Agent) -> None:
    server.report_interval = 0.1
    agent.start(NSTANCE_REPORT_INTERVAL="0")
    await eventually(lambda: server.last_seen.reports)
    server.push({"a": b""}, "sha256:1")
    await eventually(lambda: server.last_seen.reports[-1].config_hash == "sha256:1")
    assert len(server.last_seen.reports) == 2, "the one on connecting and the one about the files"


# Notices, leaving, renewal.


async def test_a_shutdown_notice_is_sent_at_once_and_again_after_reconnecting(
    server: AgentServer, agent: Agent, system_state: list[str | None]
) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    agent.going_down.set()
    server.cut()
    await eventually(lambda: len(server.last_seen.reports) == 2)
    assert server.last_seen.notices == [], "nobody but the signal says so"
    system_state[0] = "stopping"
    agent.going_down.set()
    await eventually(lambda: server.last_seen.notices)
    server.cut()
    await eventually(lambda: len(server.last_seen.notices) == 2)
    assert {notice.kind for notice in server.last_seen.notices} == {agent_pb2.Notice.SHUTDOWN}


@pytest.mark.parametrize(
    ("state", "reason", "notices"),
    [("running", agent_pb2.Goodbye.RESTART, 0), ("stopping", agent_pb2.Goodbye.SHUTDOWN, 1)],
)
async def test_says_goodbye_with_the_reason(
    server: AgentServer, agent: Agent, system_state: list[str | None], state: str, reason: int, notices: int
) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    system_state[0] = state
    await agent.stop()
    assert [goodbye.reason for goodbye in server.last_seen.goodbyes] == [reason]
    assert len(server.last_seen.notices) == notices
    assert server.last_seen.messages[-1].WhichOneof("kind") == "goodbye"


async def test_it_waits_until_the_goodbye_is_confirmed(server: AgentServer, agent: Agent) -> None:
    agent.waits = Waits(goodbye=60.0, stop=60.0)
    server.hold_goodbyes = asyncio.Event()
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    stopping = asyncio.create_task(agent.stop())
    await eventually(lambda: server.last_seen.goodbyes)
    server.push({"a.txt": b"1"}, "sha256:1")
    await eventually((agent.recv / "a.txt").exists)  # it is still there
    assert not stopping.done()
    server.hold_goodbyes.set()
    await stopping


async def test_without_a_server_it_leaves_all_the_same(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
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
    reports = len(await eventually(lambda: server.last_seen.reports))
    server.cut()
    await eventually(lambda: len(server.last_seen.reports) > reports)
    assert (len(server.last_seen.registrations), server.last_seen.renewals) == (1, 1)


async def test_a_fresh_certificate_is_not_renewed(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    server.cut()
    await eventually(lambda: len(server.last_seen.reports) == 2)
    assert server.last_seen.renewals == 0


async def test_a_renewal_that_fails_costs_nothing_else(server: AgentServer, agent: Agent) -> None:
    server.agent_life, server.registered_age = 3 * 86400.0, 2.5 * 86400.0
    server.scripts.renew.append(status.unavailable("the CA is away"))
    agent.start()
    await eventually(lambda: server.last_seen.renewals)
    server.push({"a.txt": b""}, "sha256:1")
    await eventually(lambda: server.last_seen.reports and server.last_seen.reports[-1].config_hash == "sha256:1")
    assert server.last_seen.connections == 1


async def test_a_certificate_for_somebody_else_is_not_kept(
    server: AgentServer, agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    issue = server.issue
    monkeypatch.setattr(server, "issue", lambda _, public, **more: issue(server.new_instance(), public, **more))
    agent.start()
    await eventually(lambda: "failed to store the certificate" in caplog.text)
    assert not (agent.identity / "identity.crt").exists()
    assert (agent.identity / "nonce.jwt").exists()


# The health endpoint.


async def test_the_health_endpoint_is_green_once_registered(server: AgentServer, agent: Agent, free_port: int) -> None:
    server.scripts.register.extend([status.unavailable("not leading")] * 1000)
    agent.start(NSTANCE_HEALTH_ADDR=f"127.0.0.1:{free_port}")
    await eventually(lambda: server.last_seen.registrations)
    assert await get(free_port, "/healthz") == ("503 Service Unavailable", "not registered yet\n")
    server.scripts.register.clear()
    await eventually(lambda: server.last_seen.reports)
    assert await get(free_port, "/healthz") == ("200 OK", "ok")
    assert await get(free_port, "/healthz", method="HEAD") == ("200 OK", "")
    assert (await get(free_port, "/other"))[0] == "404 Not Found"
    answer, metrics = await get(free_port, "/metrics")
    assert answer == "200 OK"
    assert "nstance_agent_registered 1.0\n" in metrics
    assert (await get(free_port, "/healthz", method="POST"))[0] == "405 Method Not Allowed"


async def test_two_agents_do_not_share_an_identity(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    second = Agent(agent.home, agent.environment)
    second.waits = Waits(identity_lock=0.1)
    second.start()
    await eventually(lambda: second.ended)
    with pytest.raises(SetupError, match="another nstance-agent"):
        await second.stop()


def test_the_version_is_the_package_s() -> None:
    from importlib.metadata import version

    from nstance.agent.version import VERSION

    assert version("nstance") == VERSION
