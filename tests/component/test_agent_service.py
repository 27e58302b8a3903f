"""The agent service of a whole server: what one instance may ask for, as whom, and how often."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from component.whole_server import CLUSTER, SECONDS, LightAgent, World, config, states
from nstance.config.addresses import Service
from nstance.model.instance import State
from nstance.objects.journal import DeposedError
from nstance.objects.memory import Fate
from nstance.pki import keys, proof
from nstance.server.api import asking
from nstance.server.liveness.agent_quota import WRITE_BURST
from nstance.v1 import agent_grpc, agent_pb2, registration_grpc, registration_pb2
from nstance.wire.call import call
from support.eventually import eventually

FLOOD = 150  # fewer than the messages that are allowed in a burst


def configuration() -> dict[str, Any]:
    made = config(groups={"acme": {"web": {"template": "web", "size": 2}}})
    made["certificates"] = {"server": {"kind": "server", "cn": "{{ .Instance.ID }}"}}
    made["templates"]["web"]["files"] = {
        "server.crt": {"kind": "certificate", "template": "server", "key": {"source": "agent", "name": "web.pub"}}
    }
    return made


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path, configuration()) as made:
        await made.start()
        await eventually(lambda: list(states(made, "web", "acme").values()) == ["running"] * 2)
        await eventually(lambda: sum(agent.connected for agent in made.agents.values()) == 2)
        yield made


async def alone(world: World) -> tuple[LightAgent, agent_grpc.AgentServiceStub]:
    """An agent whose place is taken by the test."""
    agent = next(iter(world.agents.values()))
    agent.stop()
    await asyncio.gather(agent.task, return_exceptions=True)
    channel = world.channel(Service.AGENT, certificate_pem=agent.certificate_pem, key=agent.key)
    return agent, agent_grpc.AgentServiceStub(channel)


def renewal(agent: LightAgent, key: Ed25519PrivateKey) -> registration_pb2.RenewCertificateRequest:
    return registration_pb2.RenewCertificateRequest(
        public_key_pem=keys.public_to_pem(keys.public_bytes(key)),
        proof=proof.prove_renewal(key, cluster=CLUSTER, id=agent.id),
    )


async def refused(calling: Any) -> Status:
    with pytest.raises(GRPCError) as caught:
        await calling
    return caught.value.status


async def report_refused(stub: agent_grpc.AgentServiceStub, instance: str) -> Status:
    """What a client of the health stream receives."""

    async def report() -> None:
        async with stub.SubmitHealthReport.open() as stream:
            report = agent_pb2.HealthReport(instance_id=instance, boot_id="b", sequence=1)
            await stream.send_message(agent_pb2.AgentMessage(report=report))
            await stream.recv_message()

    return await refused(report())


def written(world: World, where: str) -> int:
    return sum(where in key for key in world.store.contents())


async def test_renewing_a_fresh_certificate_gives_the_same_one_and_writes_nothing(world: World) -> None:
    _, stub = await alone(world)
    before = written(world, "/journal/")
    renew = registration_pb2.RenewCertificateRequest()
    answers = [await call(stub.RenewCertificate, renew, timeout=SECONDS) for _ in range(FLOOD)]
    assert len({answer.certificate_pem for answer in answers}) == 1
    assert written(world, "/journal/") <= before + 2  # that its VM was looked at


async def test_renewals_with_ever_new_keys_have_an_end(world: World) -> None:
    agent, stub = await alone(world)
    before, done = written(world, "/journal/"), 0
    why = None
    while why is None and done < FLOOD:
        try:
            await call(stub.RenewCertificate, renewal(agent, keys.generate(world.rng)), timeout=SECONDS)
            done += 1
        except GRPCError as error:
            why = error.status
    assert why is Status.RESOURCE_EXHAUSTED
    assert done <= WRITE_BURST
    assert written(world, "/journal/") - before <= WRITE_BURST + 1
    # Another connection is the same identity.
    again = world.channel(Service.AGENT, certificate_pem=agent.certificate_pem, key=agent.key)
    request = renewal(agent, keys.generate(world.rng))
    stub = agent_grpc.AgentServiceStub(again)
    assert await refused(call(stub.RenewCertificate, request, timeout=SECONDS)) is Status.RESOURCE_EXHAUSTED


async def files(stub: agent_grpc.AgentServiceStub) -> bytes:
    """The certificate that an agent with another set is sent."""
    async with stub.ReceiveFiles.open() as stream, asyncio.timeout(SECONDS):
        await stream.send_message(agent_pb2.ReceiveFilesRequest(config_hash="no"), end=True)
        message = await stream.recv_message()
        if message is None:
            await stream.recv_trailing_metadata()
        await stream.cancel()
        return bytes(message.file.content)


async def submit(world: World, stub: agent_grpc.AgentServiceStub) -> None:
    public = keys.public_to_pem(keys.public_bytes(keys.generate(world.rng)))
    request = agent_pb2.SubmitPublicKeysRequest(keys=[agent_pb2.PublicKey(name="web", pem=public)])
    await call(stub.SubmitPublicKeys, request, timeout=SECONDS)


async def test_an_equal_file_set_is_sent_again_and_not_issued_again(world: World) -> None:
    _, stub = await alone(world)
    await submit(world, stub)
    before = written(world, "/certlog/")
    assert len({await files(stub) for _ in range(FLOOD)}) == 1
    assert written(world, "/certlog/") == before + 1


async def test_certificates_for_ever_new_keys_have_an_end(world: World) -> None:
    _, stub = await alone(world)
    before, why = written(world, "/certlog/"), None
    for _ in range(FLOOD // 3):
        await submit(world, stub)
        try:
            await files(stub)
        except GRPCError as error:
            why = error.status
            break
    assert why is Status.RESOURCE_EXHAUSTED
    assert written(world, "/certlog/") - before <= WRITE_BURST


async def test_a_renewal_with_another_instances_key_is_refused(world: World) -> None:
    agent, stub = await alone(world)
    other = next(a for a in world.agents.values() if a is not agent)
    request = renewal(agent, other.key)
    before = world.leader.shard.instances[agent.id].public_key
    assert await refused(call(stub.RenewCertificate, request, timeout=SECONDS)) is Status.PERMISSION_DENIED
    assert world.leader.shard.instances[agent.id].public_key == before
    events = (await (await world.operator("acme")).call("ListEvents")).events
    assert [e.instance_id for e in events if e.reason == "security" and str(other.id) in e.message] == [agent.id]


async def test_an_instance_that_is_on_its_way_out_is_not_served(world: World) -> None:
    agent, stub = await alone(world)
    operator = await world.operator("acme")
    await operator.call("DeleteInstance", instance_id=agent.id)
    await eventually(lambda: world.leader.shard.instances[agent.id].state not in (State.RUNNING, State.DRAINING))
    renew = registration_pb2.RenewCertificateRequest()
    assert await refused(call(stub.RenewCertificate, renew, timeout=SECONDS)) is Status.PERMISSION_DENIED
    assert await report_refused(stub, agent.id) is Status.PERMISSION_DENIED


async def test_a_refused_health_stream_tells_its_client_why(world: World) -> None:
    _, stub = await alone(world)
    assert await report_refused(stub, "web-of-another") is Status.PERMISSION_DENIED


async def test_only_a_newer_report_of_the_same_boot_counts(world: World) -> None:
    agent, stub = await alone(world)

    async def say(boot: str, sequence: int, *, error: str = "") -> Any:
        report = agent_pb2.HealthReport(instance_id=agent.id, boot_id=boot, sequence=sequence, files_error=error)
        await stream.send_message(agent_pb2.AgentMessage(report=report))
        assert (await stream.recv_message()).sequence == sequence  # answered in any case
        presence = world.leader.lead_now.agents.get(agent.id)
        assert presence is not None
        assert presence.report is not None
        return presence.boot_id, presence.sequence, presence.report.files_error

    async with stub.SubmitHealthReport.open() as stream:
        assert await say("one", 5, error="newest") == ("one", 5, "newest")
        assert await say("one", 4, error="late") == ("one", 5, "newest")
        assert await say("one", 5, error="twice") == ("one", 5, "newest")
        assert await say("one", 6) == ("one", 6, "")
        assert await say("two", 1, error="restarted") == (
            "two",
            1,
            "restarted",
        )  # it restarted, and counts from the beginning
        await stream.cancel()


async def test_an_agent_that_lost_its_key_cannot_register_again(world: World) -> None:
    agent, _ = await alone(world)
    token, key = agent._request.nonce, keys.generate(world.rng)
    request = registration_pb2.RegisterAgentRequest(
        nonce=token,
        public_key_pem=keys.public_to_pem(keys.public_bytes(key)),
        proof=proof.prove_registration(key, cluster=CLUSTER, nonce=token),
    )
    before = world.leader.shard.instances[agent.id].public_key
    stub = registration_grpc.RegistrationServiceStub(world.channel(Service.REGISTRATION))
    assert await refused(call(stub.RegisterAgent, request, timeout=SECONDS)) is Status.UNAUTHENTICATED
    assert world.leader.shard.instances[agent.id].public_key == before


async def test_a_var_that_nobody_has_set_is_reported_once(tmp_path: Path) -> None:
    configured = config(groups={"acme": {"web": {"template": "web", "size": 2}}})
    configured["templates"]["web"]["files"]["motd"]["template"] = "in {{ .Vars.zone }}, {{ .Vars.greeting }}"
    async with World(tmp_path, configured) as made:
        await made.start()
        operator = await made.operator("acme")
        await eventually(lambda: sum(agent.connected for agent in made.agents.values()) == 2)
        for agent in list(made.agents.values()):
            stub = agent_grpc.AgentServiceStub(
                made.channel(Service.AGENT, certificate_pem=agent.certificate_pem, key=agent.key)
            )
            assert await files(stub) == b"in , hello"
        events = (await operator.call("ListEvents")).events
        (event,) = [e for e in events if ".Vars.zone" in e.message]
        assert (event.reason, event.group) == ("config", "web")
        assert not [e for e in events if ".Vars.greeting" in e.message]


async def test_the_cache_has_the_time_of_the_last_report(world: World) -> None:
    """It is written with a report that is new in content, and when the agent disconnects, so that `instance show` tells
    when an agent was last seen, also after a restart of the server."""
    cache = world.leader.configured.env.cache
    assert cache is not None
    sequence = 0
    puts: list[int] = []
    put_last_report = cache.put_last_report

    def counted(id: Any, at: float) -> None:
        puts.append(sequence)
        put_last_report(id, at)

    cache.put_last_report = counted  # type: ignore[method-assign]
    agent, stub = await alone(world)
    pem = keys.public_to_pem(keys.public_bytes(keys.generate(world.rng)))
    asking = agent_pb2.SubmitPublicKeysRequest(keys=[agent_pb2.PublicKey(name="web", pem=pem)])
    await call(stub.SubmitPublicKeys, asking, timeout=SECONDS)
    puts.clear()
    async with stub.SubmitHealthReport.open() as stream:
        fields: dict[str, Any] = {"boot_id": "a"}
        news: list[dict[str, Any]] = [
            {"config_hash": "h1"},
            {"config_hash": "h2"},
            {"files": [agent_pb2.FileState(name="web.crt", serial="01")]},
            {"files": [agent_pb2.FileState(name="web.crt", serial="02")]},  # renewed: the set is the same
            {"files_error": "no space left"},
            {"files_error": ""},
            {"boot_id": "b", "version": "2"},
            {"files": []},
        ]
        for sequence, new in enumerate((each for fields_changed in news for each in (fields_changed, {}, {})), 1):
            fields |= new
            report = agent_pb2.HealthReport(**fields, sequence=sequence, cpu_percent=sequence)
            await stream.send_message(agent_pb2.AgentMessage(report=report))
            await asyncio.wait_for(stream.recv_message(), SECONDS)
        assert puts == [1 + 3 * number for number in range(len(news))]
        operator = await world.operator("acme")
        shown = await operator.call("GetInstanceStatus", instance_id=agent.id)
        await stream.cancel()
    await eventually(lambda: world.leader.lead_now.agents.get(agent.id) is None)
    assert len(puts) == len(news) + 1
    last_report = await cache.last_report(agent.id)
    assert last_report is not None
    assert int(last_report * 1000) == shown.last_report_unix_ms
    later = await operator.call("GetInstanceStatus", instance_id=agent.id)
    assert (later.connected, later.last_report_unix_ms) == (False, shown.last_report_unix_ms)


async def test_a_renewal_that_cannot_be_stored_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call waited for ever while storage did not answer, and a change of leaders was an internal error."""
    agent, stub = await alone(world)
    shard, answered = world.leader.shard, world.leader.shard.ask
    request = renewal(agent, keys.generate(world.rng))

    async def end(*args: object, **fields: object) -> None:
        raise DeposedError("this server stopped leading")

    monkeypatch.setattr(shard, "ask", end)
    assert await refused(call(stub.RenewCertificate, request, timeout=SECONDS)) is Status.UNAVAILABLE
    monkeypatch.setattr(shard, "ask", answered)
    monkeypatch.setattr(asking, "ANSWER_TIMEOUT_SECONDS", 0.05)
    world.fate = lambda verb, key: Fate(before=3600.0) if "/journal/" in key else Fate()
    assert await refused(call(stub.RenewCertificate, request, timeout=SECONDS)) is Status.UNAVAILABLE
