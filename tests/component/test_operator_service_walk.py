"""A group's whole life by an operator's hand, each step visible in the events with its reason."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from component.whole_server import Operator, World, config, states
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually


@contextlib.asynccontextmanager
async def draining(operator: Operator) -> AsyncIterator[None]:
    """What an operator does all day: acknowledge each drain."""

    async def work() -> None:
        async with operator.watch(instances=True, drains=True) as watching:
            while True:
                event = (await watching.stream.recv_message()).instance
                if event.state == "draining" and event.waits:
                    await operator.call("AcknowledgeDrained", instance_id=event.instance_id)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def running(world: World) -> set[str]:
    return {id for id, state in states(world, "web", "acme").items() if state == "running"}


def leaving(world: World) -> bool:
    return any(state in ("draining", "deleting") for state in states(world, "web", "acme").values())


async def test_the_walk(tmp_path: Path) -> None:
    async with World(tmp_path, config()) as world:
        server = await world.start()
        operator = await world.operator("acme")

        async def upsert(**fields: object) -> None:
            await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", **fields))  # type: ignore[arg-type]

        async def settled(size: int) -> set[str]:
            await eventually(lambda: len(running(world)) == size and not leaving(world))
            return running(world)

        async def reasons() -> list[str]:
            events = (await operator.call("ListEvents", group="web", limit=1000)).events
            assert all(event.message for event in events)
            return [event.reason for event in events]

        async with draining(operator):
            await upsert(size=0)
            assert not states(world, "web", "acme")
            await upsert(size=20)
            await settled(20)
            await upsert(size=3)
            three = await settled(3)
            assert {"scale-up", "registered", "scale-down", "drain-started", "drained", "config"} <= set(
                await reasons()
            )

            await upsert(size=3, vars={"greeting": "hi"})
            assert await settled(3) == three  # files change, VMs do not

            fewest = 3

            def count(_: object) -> None:
                nonlocal fewest
                fewest = min(fewest, len(running(world)))

            server.shard.commits.subscribe(count)
            await upsert(size=3, vars={"greeting": "hi"}, instance_type="large")
            await eventually(lambda: len(running(world)) == 3 and not running(world) & three and not leaving(world))
            assert fewest == 3  # replacement comes first
            assert "replace" in await reasons()
            server.shard.commits._observers.remove(count)

            new = running(world)
            await operator.call("PauseGroup", key="web")
            for id in new:
                world.cloud.stop(id)  # type: ignore[arg-type]
            await eventually(lambda: not any(world.agents[id].connected for id in new))  # type: ignore[index]
            await operator.call("ListGroups")
            assert set(states(world, "web", "acme")) >= new
            assert running(world) == new  # nothing is done, nothing is made
            await operator.call("ResumeGroup", key="web")
            await eventually(lambda: len(running(world) - new) == 3)
            assert "gone" in await reasons()
            await operator.call("DeleteGroup", key="web")
            await settled(0)
