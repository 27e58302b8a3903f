"""Peers at the wrong port of a whole server: refused, and written down."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from component.whole_server import SECONDS, Operator, World, config, states
from nstance.config.addresses import Service
from nstance.v1 import agent_grpc, agent_pb2, operator_grpc, operator_pb2
from nstance.wire import tls
from nstance.wire.call import call
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 1}}}


async def security_events(operator: Operator) -> list[Any]:
    return [event for event in (await operator.call("ListEvents")).events if event.reason == "security"]


async def test_whoever_comes_to_anothers_port_is_refused_and_audited_once(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"])
        (agent,) = world.agents.values()
        operator, stranger = await world.operator("acme"), await world.operator("globex")
        for _ in range(2):  # a connection each
            as_operator = world.channel(Service.OPERATOR, certificate_pem=agent.certificate_pem, key=agent.key)
            groups = operator_grpc.OperatorServiceStub(as_operator).ListGroups
            with pytest.raises(GRPCError) as caught:
                await call(groups, operator_pb2.ListGroupsRequest(), timeout=SECONDS)
            assert caught.value.status is Status.PERMISSION_DENIED
            as_agent = world.channel(Service.AGENT, certificate_pem=operator.certificate_pem, key=operator.key)
            submit = agent_grpc.AgentServiceStub(as_agent).SubmitPublicKeys
            with pytest.raises(GRPCError) as caught:
                await call(submit, agent_pb2.SubmitPublicKeysRequest(), timeout=SECONDS)
            assert caught.value.status is Status.PERMISSION_DENIED
        by_agent, by_operator = await security_events(operator)
        assert (by_agent.group, by_agent.instance_id) == ("web", agent.id)
        assert "role operator, found agent" in by_agent.message
        assert (by_operator.group, by_operator.instance_id) == ("", "")
        assert str(operator.identity.id) in by_operator.message
        assert await security_events(stranger) == []


@pytest.mark.parametrize("service", [Service.ELECTION, Service.REGISTRATION, Service.OPERATOR, Service.AGENT])
async def test_no_port_answers_to_a_name_that_is_not_the_servers(tmp_path: Path, service: Service) -> None:
    async with World(tmp_path, agents=False) as world:
        running = await world.start()
        port = running.base + list(Service).index(service)
        context = tls.client_context(ca_pem=world.ca_pem, alpn="http/1.1" if service is Service.ELECTION else tls.ALPN)

        async def ask_for(name: str) -> None:
            async with asyncio.timeout(SECONDS):
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
            writer.transport.abort()

        await ask_for("localhost")
        await ask_for("127.0.0.1")
        with pytest.raises(OSError):
            await ask_for("elsewhere.example")
