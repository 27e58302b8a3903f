"""Two agents with one identity at a whole server: the event, the metric, the line in `status`, and the replacement."""

import asyncio
from pathlib import Path

import pytest

from component.admin_shell import shell
from component.whole_server import LightAgent, World, config, states
from nstance.config.addresses import Service
from nstance.v1 import agent_grpc, agent_pb2
from support.eventually import eventually

GROUPS = {"default": {"web": {"template": "web", "size": 2}}}


async def report(world: World, agent: LightAgent, boot: str, sequence: int) -> None:
    """As an agent that has just started or come back: on a connection of its own, which it leaves open."""
    channel = world.channel(Service.AGENT, certificate_pem=agent.certificate_pem, key=agent.key)
    async with agent_grpc.AgentServiceStub(channel).SubmitHealthReport.open() as stream:
        report = agent_pb2.HealthReport(instance_id=agent.id, boot_id=boot, sequence=sequence)
        await stream.send_message(agent_pb2.AgentMessage(report=report))
        await stream.recv_message()
        await stream.cancel()


async def quiet_agent(world: World) -> LightAgent:
    """One whose place the test takes."""
    await eventually(lambda: list(states(world, "web").values()) == ["running"] * 2)
    await eventually(lambda: all(agent.connected for agent in world.agents.values()))
    agent = next(iter(world.agents.values()))
    agent.stop()
    await asyncio.gather(agent.task, return_exceptions=True)
    return agent


def cloned(world: World) -> str:
    text = world.leader.server.metrics.render().decode()
    [line] = [line for line in text.splitlines() if line.startswith("nstance_cloned_instances{")]
    return line.split()[-1]


async def test_by_default_an_event_is_recorded_and_nothing_else(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        admin = await shell(world)
        agent = await quiet_agent(world)
        before = dict(states(world, "web"))
        for number, boot in enumerate(("second", "third", "fourth"), 1):  # restarts
            await report(world, agent, boot, number)
        assert cloned(world) == "0.0"
        assert "security" not in {each["reason"] for each in await admin.json("events")}

        await report(world, agent, "third", 9)  # which lives after all
        assert cloned(world) == "1.0"
        await report(world, agent, "fourth", 9)
        events = [each for each in await admin.json("events") if each["reason"] == "security"]
        assert [each["instance_id"] for each in events] == [agent.id]
        assert events[0]["message"] == "two agents use its identity at the same time, from 127.0.0.1"
        text = (await admin.ok("status")).stdout
        assert "1 with an identity that two agents use" in text
        assert f"{agent.id}  running" in text
        assert (await admin.json("instance", "show", agent.id))["cloned"] is True
        agent.start()
        await eventually(lambda: agent.connected)
        assert (await admin.ok("wait")).stderr.splitlines()[-2:] == [
            "web is stable, but: 1 with an identity that two agents use",
            "stable",
        ]
        assert dict(states(world, "web")) == before


@pytest.mark.parametrize("on_clone", ["replace", "alarm"])
async def test_it_is_replaced_where_the_configuration_says_so(tmp_path: Path, on_clone: str) -> None:
    async with World(tmp_path, config(groups=GROUPS, identity={"on_clone": on_clone})) as world:
        await world.start()
        agent = await quiet_agent(world)
        for boot in ("second", "third", "second"):
            await report(world, agent, boot, 1)
        assert world.leader.shard.instances[agent.id].replace_wanted is (on_clone == "replace")
        agent.start()
        if on_clone == "replace":
            await eventually(lambda: states(world, "web")[agent.id] in ("draining", "deleting", "deleted"))
            assert sum(state == "running" for state in states(world, "web").values()) == 2
