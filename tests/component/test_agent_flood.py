"""An agent that floods is cut off; others are served, and the flood makes nothing grow."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from component.whole_server import SECONDS, World, config, states
from nstance.config.addresses import Service
from nstance.server.liveness.agent_quota import MESSAGE_BURST, MESSAGES_PER_SECOND, TokenBucket
from nstance.v1 import agent_grpc, agent_pb2
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 2}}}


async def test_a_flood_of_reports_ends_its_stream_and_nobody_elses(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        await eventually(lambda: list(states(world, "web", "acme").values()) == ["running"] * 2)
        await eventually(lambda: all(agent.connected for agent in world.agents.values()))
        flooding, other = world.agents.values()
        flooding.stop()
        channel = world.channel(Service.AGENT, certificate_pem=flooding.certificate_pem, key=flooding.key)
        taken = 0

        async def drain(stream: Any) -> None:
            nonlocal taken
            with contextlib.suppress(StreamTerminatedError):
                while await stream.recv_message() is not None:
                    taken += 1

        async def flood() -> None:
            async with agent_grpc.AgentServiceStub(channel).SubmitHealthReport.open() as stream:
                await stream.send_request()
                reading = asyncio.create_task(drain(stream))
                try:
                    for sequence in range(1, 20 * int(MESSAGE_BURST)):
                        report = agent_pb2.HealthReport(instance_id=flooding.id, boot_id="b", sequence=sequence)
                        await stream.send_message(agent_pb2.AgentMessage(report=report))
                finally:
                    await reading

        async with asyncio.timeout(SECONDS):
            with pytest.raises(GRPCError) as refusal:
                await flood()
        why = refusal.value.status
        assert why is Status.RESOURCE_EXHAUSTED
        assert taken < 5 * MESSAGE_BURST
        assert other.connected
        shown = (await (await world.operator("acme")).call("ListGroups")).groups[0]
        assert (shown.actual_size, shown.ready_size) == (2, 1)  # the one that flooded has lost its agent


@pytest.mark.parametrize(("seconds", "allowed"), [(0.0, MESSAGE_BURST), (5.0, MESSAGE_BURST), (1e6, MESSAGE_BURST)])
def test_a_bucket_allows_a_burst_and_no_more(seconds: float, allowed: float) -> None:
    bucket = TokenBucket(MESSAGES_PER_SECOND, MESSAGE_BURST, 0.0)
    assert sum(bucket.take(seconds) for _ in range(1000)) == allowed
    later = seconds + 2.0
    taken = sum(bucket.take(later + n / 1000) for n in range(1000))
    assert 2 * MESSAGES_PER_SECOND <= taken <= 3 * MESSAGES_PER_SECOND + 1  # what is refused costs nothing
