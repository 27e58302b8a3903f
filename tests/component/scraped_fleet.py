"""Every program with metrics, after a spot notice was answered: a leader with a standby, an operator, an agent and
`nstance-admin serve`, each at an address that Prometheus can scrape."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from component import operator_site
from component.agent_server import AgentServer
from component.agent_world import Agent
from component.http_world import served
from component.operator_site import Site
from component.whole_server import World, config, states
from nstance.operator.controllers import registry
from nstance.v1 import agent_pb2
from support.eventually import eventually

GROUPS = {"default": {"web": {"template": "web", "size": 3}}}
PRICES = {"currency": "USD", "hourly": {"*": 0.1}}


@dataclass(frozen=True)
class ScrapedFleet:
    world: World
    addresses: dict[str, str]  # by program; the server is the leader

    async def scrape(self, program: str) -> str:
        url = f"http://{self.addresses[program]}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 200
            return await answer.text()


@contextlib.asynccontextmanager
async def scraped_fleet(tmp_path: Path, agent_port: int) -> AsyncIterator["ScrapedFleet"]:
    async with contextlib.AsyncExitStack() as stack:
        world = await stack.enter_async_context(World(tmp_path / "server", config(groups=GROUPS, prices=PRICES)))
        leader = await world.start()
        await world.start("b", lead=False)
        await eventually(lambda: [*states(world, "web").values()].count("running") == 3)
        site = Site(world, tmp_path)
        await site.prepare()
        operator = site.operator(leader_elect=True, build=registry.build_controllers)
        await stack.enter_async_context(operator_site.running(operator))
        operator.metrics.kubernetes_called("GET", "200")  # the Kubernetes in memory gets no requests
        await eventually(lambda: operator.links is not None and operator_site.is_ready(operator))
        await eventually(lambda: world.leader.shard.drainers.last_seen(operator_site.TENANT) is not None)
        browser = await stack.enter_async_context(served(world))
        await browser.get("/metrics")  # the first request cannot count itself
        agents = await stack.enter_async_context(AgentServer().running())
        agent = Agent(tmp_path / "home", agents.prepare(tmp_path / "home", agents.new_instance()))
        agent.start(NSTANCE_HEALTH_ADDR=f"127.0.0.1:{agent_port}")
        stack.push_async_callback(agent.stop)
        await eventually(lambda: agents.last_seen.reports)
        await answer_spot_notice(world)
        yield ScrapedFleet(
            world,
            {
                "server": f"127.0.0.1:{leader.base}",
                "operator": f"127.0.0.1:{operator.metrics_server.listener.port}",
                "agent": f"127.0.0.1:{agent_port}",
                "admin": f"127.0.0.1:{browser.port}",
            },
        )


async def answer_spot_notice(world: World) -> None:
    """Until the instance is drained and deleted, and its replacement runs."""
    await eventually(lambda: sum(agent.connected for agent in world.agents.values()) == 3)
    leaving = next(id for id, state in states(world, "web").items() if state == "running")
    world.agents[leaving].notice(agent_pb2.Notice.SPOT_TERMINATION)
    await eventually(lambda: states(world, "web")[leaving] == "deleted")
    await eventually(lambda: [*states(world, "web").values()].count("running") == 3)
    await eventually(lambda: sum(agent.connected for agent in world.agents.values()) == 3)
