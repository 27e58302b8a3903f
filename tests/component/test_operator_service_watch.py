"""Watching: a snapshot, then every change, in order, for any number of watchers."""

from pathlib import Path

import pytest
from grpclib.const import Status

from component.whole_server import World, config, ready, states
from nstance.server.api import watchers
from nstance.v1.operator_pb2 import GroupConfig, WatchMessage
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 2}}}


def kind(message: WatchMessage) -> str:
    return message.WhichOneof("kind") or ""


async def test_a_snapshot_then_every_change_without_a_gap(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 2)
        async with operator.watch(drains=True) as watching:
            snapshot = await watching.snapshot()
            assert [kind(message) for message in snapshot] == ["group", "instance", "instance"]
            assert snapshot[0].group == (await operator.call("ListGroups")).groups[0]
            await operator.call("UpsertGroup", key="new", config=GroupConfig(template="web", size=1))
            await watching.until(lambda m: m.group.key == "new" and m.group.ready_size == 1)
            made = [(m.instance.state, m.instance.ready) for m in watching.seen if m.instance.group == "new"]
            assert list(dict.fromkeys(made)) == [
                ("pending", False),
                ("starting", False),
                ("running", False),
                ("running", True),
            ]
            await operator.call("DeleteGroup", key="new")
            await watching.have(lambda m: m.group_deleted == "new")
            drain = (await watching.have(lambda m: m.instance.state == "draining")).instance
            assert (drain.group, drain.reason, drain.waits, drain.vm_gone) == ("new", "scale-down", True, False)
            assert drain.deadline_unix_ms > world.clock.wall() * 1000
            await operator.call("AcknowledgeDrained", instance_id=drain.instance_id)
            gone = await watching.until(lambda m: m.instance.state == "deleted")
            assert (gone.instance.instance_id, gone.instance.vm_gone) == (drain.instance_id, True)
            assert [m.sequence for m in watching.seen] == list(range(1, len(watching.seen) + 1))


async def test_a_cancelled_drain_is_announced(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 2)
        async with operator.watch(instances=True, drains=True) as watching:
            await watching.snapshot()
            await operator.call("UpsertGroup", key="web", config=GroupConfig(size=1))
            old = (await watching.until(lambda m: m.instance.state == "draining")).instance.instance_id
            await operator.call("UpsertGroup", key="web", config=GroupConfig(size=2))
            back = await watching.until(lambda m: m.instance.instance_id == old)
            assert (back.instance.state, back.instance.drain_cancelled, back.instance.reason) == ("running", True, "")
            assert not (await operator.call("AcknowledgeDrained", instance_id=old)).accepted


async def test_kinds_are_filtered_and_watchers_are_many(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        await world.start()
        operator, colleague = await world.operator("acme"), await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 2)
        async with (
            operator.watch(groups=True) as groups,
            operator.watch(errors=True) as errors,
            colleague.watch(instances=True) as instances,
            colleague.watch(groups=True) as more,
        ):
            for each in (groups, errors, instances, more):
                await each.snapshot()
            dead = min(states(world, "web", "acme"))
            gone = world.leader.shard.instances[dead].provider_id
            world.cloud.stop(dead)
            for each in (groups, more):
                await each.until(lambda m: m.group.ready_size == 2 and gone not in m.group.provider_ids)
            trouble = await errors.until(lambda m: m.error.instance_id == dead)
            assert (trouble.error.reason, trouble.error.trouble, trouble.error.group) == ("gone", True, "web")
            left = await instances.until(lambda m: m.instance.instance_id == dead and m.instance.state != "running")
            assert (left.instance.vm_gone, left.instance.waits) == (True, False)
            assert {kind(m) for m in groups.seen} == {"group", "snapshot_end"}
            assert {kind(m) for m in errors.seen} == {"error", "snapshot_end"}
            assert {kind(m) for m in instances.seen} == {"instance", "snapshot_end"}
        found = (await operator.call("ListEvents", group="web", limit=1000)).events
        assert [e.reason for e in found if e.instance_id == dead and e.trouble][:1] == ["gone"]
        later = (await operator.call("ListEvents", after_id=found[0].id, limit=1)).events
        assert [event.id for event in later] == [found[1].id]


async def test_a_slow_watcher_is_ended_and_others_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "MAX_QUEUED_MESSAGES", 50)
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        server = await world.start()
        slow, quick, caller = [await world.operator("acme") for _ in range(3)]
        async with slow.watch(groups=True) as sleeping, quick.watch(groups=True) as reading:
            await sleeping.snapshot()
            await reading.snapshot()
            big = "x" * 30_000
            for size in range(60):
                desired = GroupConfig(vars={"big": f"{big}{size}"})
                await caller.call("UpsertGroup", key="web", config=desired)
                await reading.until(lambda m, end=str(size): m.group.vars.get("big", "").endswith(f"x{end}"))  # type: ignore[misc]
            refused = await sleeping.end()
            assert refused.status is Status.RESOURCE_EXHAUSTED
            assert "snapshot" in (refused.message or "")
            await caller.call("UpsertGroup", key="web", config=GroupConfig(size=1))
            await reading.until(lambda m: m.group.size == 1)
        await eventually(lambda: server.lead is not None)


async def test_groups_of_a_new_configuration_are_sent(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS), agents=False) as world:
        await world.start()
        operator = await world.operator("acme")
        async with operator.watch(groups=True) as watching:
            await watching.snapshot()
            world.configure(config(groups={"acme": {"other": {"template": "web", "size": 0}}}))
            await operator.call("RefreshConfig")
            await watching.have(lambda m: m.group_deleted == "web")
            await watching.have(lambda m: m.group.key == "other")


async def test_an_agent_that_comes_back_ends_its_drain(tmp_path: Path) -> None:
    health = {"suspect_after": "1s", "dead_after": "3s"}
    async with World(tmp_path, config(groups=GROUPS, health=health)) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: ready(world, "web", "acme") == 2)
        await eventually(lambda: all(agent.connected for agent in world.agents.values()))
        async with operator.watch(instances=True, drains=True) as watching:
            await watching.snapshot()
            old = min(states(world, "web", "acme"))
            world.agents[old].mute()
            drain = (await watching.until(lambda m: m.instance.state == "draining")).instance
            assert (drain.instance_id, drain.reason, drain.waits) == (old, "unhealthy", True)
            world.agents[old].speak()
            back = await watching.until(lambda m: m.instance.instance_id == old)
            assert (back.instance.state, back.instance.drain_cancelled) == ("running", True)
            gone = await watching.until(lambda m: m.instance.reason == "superseded")
            assert gone.instance.instance_id not in (old, "")
        await eventually(lambda: list(states(world, "web", "acme").values()).count("running") == 2)
        assert states(world, "web", "acme")[old] == "running"
