"""Only an operator that said that it drains makes deletions wait: whole servers, real TLS."""

from pathlib import Path

from component.whole_server import SHORT_LEASE, Operator, World, config, new_uuid, states
from nstance.model.ids import TenantId
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 2}}}
ACME = TenantId("acme")


async def settled(world: World) -> str:
    await eventually(lambda: list(states(world, "web", "acme").values()).count("running") == 2)
    return min(id for id, state in states(world, "web", "acme").items() if state == "running")


async def events(operator: Operator, id: str) -> list[tuple[str, str]]:
    return [(e.reason, e.message) for e in (await operator.call("ListEvents", instance_id=id)).events]


async def test_reading_scaling_and_watching_make_no_deletion_wait(tmp_path: Path) -> None:
    """Everything that an administrator does; then a deletion goes straight through."""
    async with World(tmp_path, config(groups=GROUPS)) as world:
        server = await world.start()
        operator = await world.operator("acme")
        one = await settled(world)
        async with operator.watch() as watching:
            await watching.snapshot()
            await operator.call("ListGroups")
            await operator.call("GetConfigStatus")
            await operator.call("PlanGroup", key="web")
            await operator.call("UpsertGroup", key="web", config=GroupConfig(size=3))
            await operator.call("CreateInstance", group="web", uuid=new_uuid())
            await operator.call("AcknowledgeDrained", instance_id=one)
            assert server.shard.drainers.last_seen(ACME) is None
            await operator.call("DeleteInstance", instance_id=one)
            await watching.until(lambda m: m.instance.instance_id == one and m.instance.state == "deleting")
            assert not any(m.instance.state == "draining" for m in watching.seen)
        messages = dict(await events(operator, one))
        assert messages["requested"] == f"deletion requested by {operator.identity.id}"
        assert "drain-started" not in messages


async def test_deletions_wait_for_a_watcher_that_drains(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        server = await world.start()
        operator = await world.operator("acme")
        one = await settled(world)
        async with operator.watch(drains=True) as watching:
            await watching.snapshot()
            assert server.shard.drainers.last_seen(TenantId("globex")) is None
            await operator.call("DeleteInstance", instance_id=one)
            found = await watching.until(lambda m: m.instance.instance_id == one and m.instance.state != "running")
            assert (found.instance.state, found.instance.waits) == ("draining", True)
            assert (await operator.call("AcknowledgeDrained", instance_id=one)).accepted
        await eventually(lambda: states(world, "web", "acme")[one] == "deleted")
        assert ("drained", f"drain acknowledged by {operator.identity.id}") in await events(operator, one)
        found = [e for e in (await operator.call("ListEvents")).events if e.reason == "drainer"]
        assert [e.message for e in found] == ["an operator drains instances"]


async def test_a_new_leader_waits_for_a_drainer_that_is_about_to_reconnect(tmp_path: Path) -> None:
    """It was there under the last leader and is not back yet; a tenant that only looked has none."""
    groups = {**GROUPS, "globex": {"web": {"template": "web", "size": 1}}}
    async with World(tmp_path, config(groups=groups, leader_election=SHORT_LEASE)) as world:
        first = await world.start("a")
        operator, reader = await world.operator("acme"), await world.operator("globex")
        one = await settled(world)
        async with operator.watch(drains=True) as watching, reader.watch() as reading:
            await watching.snapshot()
            await reading.snapshot()
        await first.crash()
        second = await world.start("b")
        assert second.shard.drainers.last_seen(ACME) is not None
        assert second.shard.drainers.last_seen(TenantId("globex")) is None
        await eventually(lambda: second.shard.listed)
        again = Operator(world, operator.key, operator.certificate_pem)
        await again.call("DeleteInstance", instance_id=one)
        await eventually(lambda: states(world, "web", "acme")[one] == "draining")


async def test_a_registration_alone_is_no_drainer(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        first = await world.start("a")
        await world.operator("acme")
        await first.stop()
        second = await world.start("b")
        assert second.shard.drainers.last_seen(ACME) is None
