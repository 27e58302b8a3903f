"""Faults and lies that only a whole server shows, each by its number."""

import asyncio
import shutil
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError, StreamTerminatedError

from component.whole_server import SECONDS, SHORT_LEASE, LightAgent, World, config, states
from nstance.config.addresses import Service
from nstance.objects import errors
from nstance.objects.memory import Fate, Verb
from nstance.pki import keys
from nstance.providers.errors import UnavailableError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire.call import call
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 2}}}
ONE = {"acme": {"web": {"template": "web", "size": 1}}}


async def running(world: World, size: int = 2) -> list[LightAgent]:
    await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * size)
    await eventually(lambda: sum(agent.connected for agent in world.agents.values()) == size)
    return list(world.agents.values())


def agent_stub(world: World, agent: LightAgent) -> agent_grpc.AgentServiceStub:
    return agent_grpc.AgentServiceStub(
        world.channel(Service.AGENT, certificate_pem=agent.certificate_pem, key=agent.key)
    )


@pytest.mark.parametrize("lost", [True, False], ids=["cache deleted", "cache kept"])
async def test_a_leader_that_lost_its_cache_does_what_one_with_its_cache_does(tmp_path: Path, lost: bool) -> None:
    async with World(tmp_path, config(groups=GROUPS, leader_election=SHORT_LEASE)) as world:
        first = await world.start()
        await running(world)
        before = {id: (i.state, i.provider_id) for id, i in first.shard.instances.items()}
        await first.crash()
        if lost:
            shutil.rmtree(tmp_path / "a")
        second = await world.start()
        await running(world)
        await eventually(lambda: second.shard.listed)
        assert {id: (i.state, i.provider_id) for id, i in second.shard.instances.items()} == before
        assert len(world.cloud.vms()) == 2


async def test_a_nonce_whose_userdata_was_never_rendered_lets_nobody_in_twice(tmp_path: Path) -> None:
    """The leader dies with the intent written and nothing asked of the provider. The next one makes the VM with the same
    nonce; it is its agent's alone."""
    async with World(tmp_path, config(groups=ONE, leader_election=SHORT_LEASE)) as world:
        unsent = Outcome(before=2 * SECONDS, applied=False, error=UnavailableError("it never arrived"))
        world.behavior.then(Call.CREATE, unsent)
        first = await world.start()
        (pending,) = await eventually(lambda: list(first.shard.instances.values()))
        token = first.lead_now.issuer.token(pending)
        await first.crash()
        second = await world.start()
        (agent,) = await running(world, 1)
        assert agent.id == pending.id
        assert agent._request.nonce == token == second.lead_now.issuer.token(second.shard.instances[pending.id])


async def test_no_certificate_leaves_a_server_that_cannot_log_it(tmp_path: Path) -> None:
    configured = config(groups=ONE)
    configured["certificates"] = {"server": {"kind": "server", "cn": "{{ .Instance.ID }}"}}
    configured["templates"]["web"]["files"] = {
        "server.crt": {"kind": "certificate", "template": "server", "key": {"source": "agent", "name": "web.pub"}}
    }

    def unwritable(verb: Verb, key: str) -> Fate:
        return Fate(error=errors.PermissionDeniedError("no")) if "certlog" in key else Fate()

    async with World(tmp_path, configured) as world:
        world.fate = unwritable
        await world.start()
        (agent,) = await running(world, 1)
        agent.stop()
        stub = agent_stub(world, agent)
        public = keys.public_to_pem(keys.public_bytes(keys.generate(world.rng)))
        request = agent_pb2.SubmitPublicKeysRequest(keys=[agent_pb2.PublicKey(name="web", pem=public)])
        operator = await world.operator("acme")

        async def is_recorded() -> bool:
            events = (await operator.call("ListEvents")).events
            return any("failed to write the certificate log" in event.message for event in events)

        async with stub.ReceiveFiles.open() as files, asyncio.timeout(SECONDS):
            await files.send_message(agent_pb2.ReceiveFilesRequest(), end=True)
            await call(stub.SubmitPublicKeys, request, timeout=SECONDS)
            await eventually(is_recorded)
            assert b"nstance_certificates_issued_total 0.0" in world.leader.server.metrics.render()
            world.fate = lambda verb, key: Fate()
            while (message := await files.recv_message()).WhichOneof("kind") != "file":
                pass
            assert message.file.name == "server.crt"
            assert [key for key in world.store.contents() if "/certlog/" in key]
            await files.cancel()


async def test_an_agent_speaks_for_itself_only(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        one, other = await running(world)
        one.stop()

        async def lie() -> None:
            async with agent_stub(world, one).SubmitHealthReport.open() as stream:
                report = agent_pb2.HealthReport(instance_id=other.id, boot_id="boot", sequence=1)
                await stream.send_message(agent_pb2.AgentMessage(report=report))
                await stream.recv_message()

        with pytest.raises((GRPCError, StreamTerminatedError)):
            await lie()
        events = (await (await world.operator("acme")).call("ListEvents")).events
        (audited,) = [event for event in events if event.reason == "security"]
        assert audited.instance_id == one.id
        assert other.id in audited.message
