"""An agent gets its identity, and keeps it."""

import stat

import pytest
from cryptography import x509

from component import agent_world
from component.agent_server import AgentServer
from component.agent_world import Agent, get
from nstance.agent.files.folder import SetupError
from nstance.model.ids import InstanceId
from nstance.pki import keys as pki_keys
from nstance.wire import status
from support.eventually import eventually

agent = agent_world.agent
instance = agent_world.instance
server = agent_world.server
free_port = agent_world.free_port
system_state = agent_world.system_state


async def test_registers_and_reports_at_once(server: AgentServer, agent: Agent, instance: InstanceId) -> None:
    agent.start(NSTANCE_INSTANCE_IPV4="10.1.2.3", NSTANCE_INSTANCE_HOSTNAME="worker-1")
    report = (await eventually(lambda: server.last_seen.reports))[0]
    assert (report.sequence, report.instance_id, report.config_hash) == (1, instance, "")
    assert report.uptime_seconds > 0
    [request] = server.last_seen.registrations
    assert (request.ipv4, request.hostname) == ("10.1.2.3", "worker-1")
    assert sorted(path.name for path in agent.identity.iterdir()) == ["ca.crt", "identity.crt", "identity.key", "shard"]
    for name in ("identity.crt", "identity.key"):
        assert stat.S_IMODE((agent.identity / name).stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate((agent.identity / "identity.crt").read_bytes())
    private = pki_keys.private_key_from_pem((agent.identity / "identity.key").read_bytes())
    assert certificate.public_key() == private.public_key()


async def test_with_a_certificate_on_disk_it_does_not_register_again(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    await agent.stop()
    (agent.identity / "nonce.jwt").write_text("left behind by userdata that ran again")
    agent.start()
    await eventually(lambda: server.last_seen.connections == 2)
    assert len(server.last_seen.registrations) == 1
    assert not (agent.identity / "nonce.jwt").exists()


async def test_an_expired_certificate_is_tried_without_a_nonce_and_replaced_with_one(
    server: AgentServer, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose clock is right is for the server to say; a nonce settles it."""
    server.agent_life, server.registered_age = 3 * 86400.0, 10 * 86400.0
    agent.start()
    await eventually(lambda: "failed to connect to the server" in caplog.text)
    await agent.stop()
    agent.start()
    await eventually(lambda: "expired by this machine's clock" in caplog.text)
    assert not agent.ended
    await agent.stop()
    assert len(server.last_seen.registrations) == 1
    server.registered_age = 0.0
    (agent.identity / "nonce.jwt").write_text(server.nonce(InstanceId(agent.environment["NSTANCE_INSTANCE_ID"])))
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    assert len(server.last_seen.registrations) == 2


async def test_a_lost_answer_is_asked_for_again_with_the_same_key(server: AgentServer, agent: Agent) -> None:
    server.scripts.lose_register_replies = 2
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    assert len(server.last_seen.registrations) == 3
    assert len({request.public_key_pem for request in server.last_seen.registrations}) == 1


async def test_killed_while_registering_it_comes_back_with_the_same_key(server: AgentServer, agent: Agent) -> None:
    server.scripts.lose_register_replies = 1
    agent.start()
    await eventually(lambda: server.last_seen.registrations)
    await agent.crash()
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    assert len({request.public_key_pem for request in server.last_seen.registrations}) == 1


async def test_servers_that_cannot_now_are_asked_again(server: AgentServer, agent: Agent) -> None:
    server.scripts.register.extend([status.unavailable("not leading"), status.exhausted("too many"), None])
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    assert len(server.last_seen.registrations) == 3


async def test_a_refused_nonce_is_final_but_the_agent_stays(
    server: AgentServer, agent: Agent, caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    (agent.identity / "nonce.jwt").write_text(AgentServer().nonce(InstanceId(agent.environment["NSTANCE_INSTANCE_ID"])))
    agent.start(NSTANCE_HEALTH_ADDR=f"127.0.0.1:{free_port}")
    await eventually(lambda: server.last_seen.registrations)
    await eventually(lambda: "nonce was refused" in caplog.text)
    assert await get(free_port, "/healthz") == ("503 Service Unavailable", "the registration nonce was refused\n")
    assert not agent.ended
    assert len(server.last_seen.registrations) == 1


async def test_losing_the_identity_directory_does_not_give_a_second_identity(
    server: AgentServer, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    spent = (agent.identity / "nonce.jwt").read_text()
    agent.start()
    await eventually(lambda: server.last_seen.reports)
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
    with pytest.raises(SetupError, match="no certificate and no nonce"):
        await agent.stop()


async def test_the_nonce_of_another_instance_is_not_sent(server: AgentServer, agent: Agent) -> None:
    (agent.identity / "nonce.jwt").write_text(server.nonce(server.new_instance()))
    agent.start()
    await eventually(lambda: agent.ended)
    with pytest.raises(SetupError, match="the nonce is for instance"):
        await agent.stop()
    assert server.last_seen.registrations == []


async def test_an_image_of_a_running_instance_gets_its_own_identity(server: AgentServer, agent: Agent) -> None:
    agent.start()
    await eventually(lambda: server.last_seen.reports)
    await agent.stop()
    clone = server.new_instance()
    (agent.identity / "nonce.jwt").write_text(server.nonce(clone))
    agent.start(NSTANCE_INSTANCE_ID=clone)
    await eventually(lambda: server.last_seen.reports[-1].instance_id == clone)
    assert len({request.public_key_pem for request in server.last_seen.registrations}) == 2


async def test_a_server_of_another_shard_or_ca_is_not_talked_to(server: AgentServer, agent: Agent) -> None:
    other = AgentServer(shard=server.shard)
    stranger = AgentServer(shard=type(server.shard)("dev-2"))
    stranger.ca = server.ca
    async with other.running(), stranger.running():
        ports = [str(s.registration.port) for s in (other, stranger, server)]
        agent.start(NSTANCE_SERVER_REGISTRATION_ADDR=",".join(f"127.0.0.1:{port}" for port in ports))
        await eventually(lambda: server.last_seen.reports)
        assert other.last_seen.registrations == stranger.last_seen.registrations == []
