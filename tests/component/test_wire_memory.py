"""A connection that ended is freed at once: a server looks at its long-lived objects as rarely as it can, so what only a
garbage collection would find stays for hours, some 20 KiB for each VM that ever was."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpclib.exceptions import GRPCError, StreamTerminatedError

from component.wire_world import SECONDS, World, agents, listening, on_both_loops, wait_for_ever
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import call, channel, listener, status
from support.eventually import eventually

WORLD = World()
AGENT = WORLD.agent()
Ending = Callable[[listener.Listener, channel.Channel], Awaitable[None]]


async def refuse(stream: Any) -> None:
    await stream.recv_message()
    raise status.denied("no")


@asynccontextmanager
async def talking(through: channel.Channel) -> AsyncIterator[None]:
    """All that an agent has: a health stream, a stream that only waits, and calls that were answered and refused."""
    stub = agent_grpc.AgentServiceStub(through)
    await call.call(stub.SubmitPublicKeys, agent_pb2.SubmitPublicKeysRequest(), timeout=SECONDS)
    with contextlib.suppress(GRPCError):
        await call.call(stub.RenewCertificate, stub.RenewCertificate.request_type(), timeout=SECONDS)
    with contextlib.suppress(GRPCError, StreamTerminatedError):
        async with stub.SubmitHealthReport.open() as health, stub.ReceiveFiles.open() as files:
            await files.send_message(agent_pb2.ReceiveFilesRequest(), end=True)
            await health.send_message(agent_pb2.AgentMessage(report=agent_pb2.HealthReport(sequence=1)))
            await health.recv_message()
            yield


async def client_leaves(port: listener.Listener, through: channel.Channel) -> None:
    through.close()


async def server_aborts(port: listener.Listener, through: channel.Channel) -> None:
    for connection in port.connections:
        connection.abort()


@pytest.mark.parametrize("end", [client_leaves, server_aborts])
@on_both_loops
async def test_an_ended_connection_needs_no_garbage_collection(end: Ending) -> None:
    service = agents(ReceiveFiles=wait_for_ever, RenewCertificate=refuse)
    gc.collect()
    gc.disable()
    try:
        async with listening(WORLD, service) as port:
            through = WORLD.channel(port.port, AGENT)
            async with talking(through):
                await eventually(lambda: len(service.entered) == 4)
                [protocol] = port._protocols
                kept = [protocol, protocol.processor, protocol.connection._connection, protocol.calls]
                kept += protocol.calls.tasks.values()
                seen = {weakref.ref(each): type(each).__name__ for each in kept}
                del protocol
                kept.clear()
                service.entered.clear()
                await end(port, through)
                await asyncio.sleep(0)
            through.close()
            await eventually(lambda: not port.connections)
            await eventually(
                lambda: all(ref() is None for ref in seen),
                f"the end of {sorted(seen.values())}",
            )
    finally:
        gc.enable()
