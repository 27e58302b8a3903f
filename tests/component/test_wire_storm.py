"""Everybody comes back at once."""

import asyncio

from component.wire_world import AGENT_ID, SECONDS, World, listening, on_both_loops
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import call, limits
from support.eventually import eventually

WORLD = World()
AGENT = WORLD.agent(id=AGENT_ID)
REQUEST = agent_pb2.SubmitPublicKeysRequest()
MANY = 150


@on_both_loops
async def test_a_storm_of_handshakes_lets_others_be_served() -> None:
    gate = limits.Limits(concurrent_handshakes=4, queue_seconds=60)
    async with listening(WORLD, limits=gate) as port, WORLD.channel(port.port, AGENT) as settled:
        stub = agent_grpc.AgentServiceStub(settled)
        await call.call(stub.SubmitPublicKeys, REQUEST, timeout=SECONDS)
        replacements = [
            WORLD.channel(port.port, AGENT, limits=limits.Limits(handshake_seconds=60)) for _ in range(MANY)
        ]
        storm = asyncio.gather(
            *(call.call(agent_grpc.AgentServiceStub(new).SubmitPublicKeys, REQUEST, timeout=60) for new in replacements)
        )
        served_between: set[int] = set()
        while not storm.done():
            await call.call(stub.SubmitPublicKeys, REQUEST, timeout=60)
            served_between.add(len(port.connections))
        await storm
        assert len(port.connections) == MANY + 1
        # Calls were answered in between, again and again, while the storm was being taken in.
        assert len(served_between) > MANY / 30
        for new in replacements:
            new.close()


@on_both_loops
async def test_those_who_begin_and_do_not_go_on_keep_no_slot() -> None:
    gate = limits.Limits(concurrent_handshakes=1, queue_seconds=60, handshake_seconds=60)
    async with listening(WORLD, limits=gate) as port:
        thieves = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(3)]
        for _, writer in thieves:
            writer.write(b"\x16")
        async with WORLD.channel(port.port, AGENT) as honest:
            await call.call(agent_grpc.AgentServiceStub(honest).SubmitPublicKeys, REQUEST, timeout=SECONDS)
        for _, writer in thieves:
            writer.transport.abort()


async def test_who_waits_too_long_for_a_handshake_is_shed() -> None:
    gate = limits.Limits(concurrent_handshakes=1, queue_seconds=0.05, handshake_seconds=60)
    async with listening(WORLD, limits=gate) as port:
        thieves = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(5)]
        for _, writer in thieves:
            writer.write(b"\x16")
        await eventually(lambda: "handshake: too slow" in port.refused)
        for _, writer in thieves:
            writer.transport.abort()
        async with WORLD.channel(port.port, AGENT) as honest:
            await eventually(lambda: len(port._handshakes) == 0)
            await call.call(agent_grpc.AgentServiceStub(honest).SubmitPublicKeys, REQUEST, timeout=SECONDS)
