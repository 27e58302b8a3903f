"""`nstance-admin cluster drain-all` against a whole server: nothing of the tenant is left, in the cloud's own list."""

import asyncio
import json
from pathlib import Path

from component.admin_shell import shell
from component.whole_server import SHARD, World, config, states
from nstance.config import storage_keys
from nstance.providers.port import Status
from support.eventually import eventually

STATIC = {"default": {"static": {"template": "web", "size": 2}}}


def alive(world: World) -> list[str]:
    return [vm.id for vm in world.cloud.vms() if vm.status is not Status.DELETED]


async def test_nothing_is_left(tmp_path: Path) -> None:
    """A static group, a paused one and an on-demand instance: each needs another call to go."""
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("group", "create", "web", "--template", "web", "--size", "1")
        await admin.ok("instance", "create", "--group", "web")
        await admin.ok("wait")
        await admin.ok("group", "pause", "web")

        dry = await admin("cluster", "drain-all", "--dry-run", "-o", "json")
        assert dry.exit_code == 0
        assert dry.stderr == "dry run: nothing was changed\n"
        plan = json.loads(dry.stdout)
        assert [(each["group"], each["instances"], each["action"]) for each in plan] == [
            ("static", 2, "scale from 2 to 0"),
            ("web", 1, "scale from 1 to 0, resume"),
            ("web", 1, "delete the on-demand instance"),
        ]
        assert {each["size"] for each in await admin.json("group", "list")} == {1, 2}

        asked = await admin("cluster", "drain-all")
        assert asked.exit_code == 2
        assert "Give --yes" in asked.stderr
        assert len(alive(world)) == 4

        done = await admin.ok("cluster", "drain-all", "--yes")
        assert done.stderr.endswith(f"empty: no VM of tenant default is left in {SHARD}\n")
        assert alive(world) == []
        assert await admin.json("instance", "list") == []
        again = await admin.ok("cluster", "drain-all")
        assert again.stderr == f"empty: no VM of tenant default is left in {SHARD}\n"


async def test_a_group_that_is_scaled_up_meanwhile_ends_the_wait(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        await world.drainer()  # it acknowledges nothing, so the wait goes on
        waiting = asyncio.create_task(admin("cluster", "drain-all", "--yes"))
        await eventually(lambda: set(states(world, "static").values()) == {"draining"})
        await admin.ok("group", "scale", "static", "1")
        result = await waiting
        assert result.exit_code == 1
        assert "somebody has scaled static up again" in result.stderr


async def test_the_end_of_the_wait_names_what_is_left(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        await world.drainer()
        result = await admin("cluster", "drain-all", "--yes", "--within", "100ms")
        assert result.exit_code == 1
        assert f"not empty after 0.1 s: shard {SHARD}: 2 draining" in result.stderr


async def test_a_shard_that_does_not_answer_stops_it_before_it_begins(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        servers = admin.environment["NSTANCE_ADMIN_SERVERS"] + ",other=127.0.0.1:1"
        result = await admin("cluster", "drain-all", "--yes", NSTANCE_ADMIN_SERVERS=servers)
        assert result.exit_code == 1
        assert "shard other: no answer" in result.stderr
        assert (await admin.json("group", "show", "static"))["size"] == 2


async def test_unknown_vms_stay_unless_they_are_released(tmp_path: Path) -> None:
    """Their records are lost, as after an old backup: a person decides about them."""
    async with World(tmp_path, config(groups=STATIC)) as world:
        server = await world.start()
        await eventually(lambda: list(states(world, "static").values()) == ["running"] * 2)
        await eventually(lambda: all(agent.connected for agent in world.agents.values()))
        for agent in world.agents.values():
            agent.mute()
        await server.stop()
        for key in [key for key in world.store.contents() if key != storage_keys.config(SHARD)]:
            if key.startswith(f"shard/{SHARD}/"):
                await world.store.delete(key)
        server = await world.start()
        await eventually(lambda: len(server.shard.unknown) == 2)
        admin = await shell(world)
        unknown = set(alive(world))
        result = await admin("cluster", "drain-all", "--yes")
        assert result.exit_code == 1
        assert "2 unknown VMs; delete them with --release-unknown" in result.stderr
        assert set(alive(world)) >= unknown
        await admin.ok("cluster", "drain-all", "--yes", "--release-unknown")
        assert alive(world) == []
