"""A bucket restored from an older backup, with whole servers, real certificates and the command line: no VM is lost."""

from pathlib import Path

from component.admin_shell import shell
from component.whole_server import SHARD, SHORT_LEASE, Json, World, config, states
from nstance.providers.port import Status
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

PREFIX = f"shard/{SHARD}/"
GROUPS = f"{PREFIX}groups.jsonc"
# The lease is restored with all else: nobody has given it back.
QUICK: Json = {
    "garbage_collection": {"interval": "1s", "registration_timeout": "1m"},
    "leader_election": SHORT_LEASE,
}


def kept(world: World) -> dict[str, bytes]:
    return {key: body for key, body in world.store.contents().items() if key.startswith(PREFIX)}


def put_back(world: World, objects: dict[str, bytes]) -> None:
    for key in kept(world):
        if key not in objects:
            world.store.tamper(key, None)
    for key, body in objects.items():
        world.store.tamper(key, body)


def running(world: World) -> set[str]:
    return {vm.id for vm in world.cloud.vms() if vm.status is Status.RUNNING}


def all_running(world: World, count: int) -> bool:
    return list(states(world, "web").values()) == ["running"] * count


async def test_vms_that_are_newer_than_the_backup_are_held_and_adopted(tmp_path: Path) -> None:
    """The size goes from 3 to 7 after the backup; the backup is restored while no server runs."""
    async with World(tmp_path, config(**QUICK)) as world:
        server = await world.start()
        operator = await world.operator()
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=3))
        await eventually(lambda: all_running(world, 3))
        backup, old = kept(world), set(states(world, "web"))
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=7))
        await eventually(lambda: all_running(world, 7))
        await eventually(lambda: all(agent.connected for agent in world.agents.values()))
        every = running(world)
        await server.stop()
        put_back(world, backup)

        server = await world.start()
        await eventually(lambda: len(server.shard.unknown) == 4)
        await eventually(lambda: all(u.agent is not None for u in server.shard.unknown.all()))
        assert running(world) == every
        assert set(states(world, "web")) == old
        assert b"nstance_unknown_vms 4.0" in server.server.metrics.render()

        admin = await shell(world)
        held = await admin.json("instance", "list", "--unknown")
        assert {vm["instance_id"] for vm in held} == every - old
        assert all("scale it up to adopt" in vm["why"] for vm in held)
        status = (await admin.ok("status")).stdout
        assert "4 unknown VMs held" in status
        assert held[0]["instance_id"] in status
        assert any(e["reason"] == "unknown-vm" for e in await admin.json("events"))
        assert "has its size of 3" in await admin.refused("instance", "adopt", held[0]["instance_id"])

        await admin.ok("group", "scale", "web", "5")  # two of them are taken instead of new ones
        await eventually(lambda: all_running(world, 5))
        await eventually(lambda: all(world.agents[id].connected for id in states(world, "web")))
        assert running(world) == every
        last, other = (vm["instance_id"] for vm in await admin.json("instance", "list", "--unknown"))

        plan = await admin.json("instance", "release", last, "--dry-run")
        assert [(each["action"], each["instance_id"]) for each in plan] == [("delete", last)]
        assert running(world) == every
        await admin.ok("instance", "release", last)
        await eventually(lambda: running(world) == every - {last})
        await admin.refused("instance", "release", last)
        assert [vm["instance_id"] for vm in await admin.json("instance", "list", "--unknown")] == [other]


async def test_a_person_adopts_a_vm_whose_agent_is_silent(tmp_path: Path) -> None:
    """It gets the time that a new instance has; when its agent comes, its certificate is enough."""
    static = {"default": {"web": {"template": "web", "size": 1}}}
    async with World(tmp_path, config(groups=static)) as world:
        server = await world.start()
        await eventually(lambda: all_running(world, 1))
        (id,) = states(world, "web")
        await eventually(lambda: world.agents[id].connected)
        world.agents[id].mute()
        await server.stop()
        put_back(world, {key: body for key, body in kept(world).items() if key.endswith("config.jsonc")})
        server = await world.start()
        await eventually(lambda: len(server.shard.unknown) == 1)
        assert not states(world, "web")  # no new VM yet: its agent may come
        admin = await shell(world)
        plan = await admin.json("instance", "adopt", id, "--dry-run")
        assert [(each["action"], each["instance_id"]) for each in plan] == [("adopt", id)]
        await admin.ok("instance", "adopt", id)
        assert states(world, "web") == {id: "starting"}
        world.agents[id].speak()
        await eventually(lambda: states(world, "web") == {id: "running"})
        await eventually(lambda: world.agents[id].connected)
        assert running(world) == {id}


async def test_an_agent_whose_registration_the_backup_does_not_know_is_recognized(tmp_path: Path) -> None:
    async with World(tmp_path, config(**QUICK)) as world:
        server = await world.start()
        world.agents_are_shut_out = True
        world.agents_may_register.clear()
        operator = await world.operator()
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=1))
        backup = await eventually(lambda: kept(world) if "starting" in states(world, "web").values() else None)
        world.agents_may_register.set()
        await eventually(lambda: all_running(world, 1))
        (id,) = states(world, "web")
        key = server.shard.instances[id].public_key
        await server.stop()
        put_back(world, backup)
        world.agents_are_shut_out = False
        server = await world.start()
        await eventually(lambda: world.agents[id].connected)
        record = server.shard.instances[id]
        assert (record.state.value, record.public_key) == ("running", key)


async def test_a_boot_without_the_file_of_groups_deletes_nothing(tmp_path: Path) -> None:
    static = {"default": {"fixed": {"template": "web", "size": 1}}}
    async with World(tmp_path, config(groups=static)) as world:
        server = await world.start()
        operator = await world.operator()
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        await operator.call("UpsertGroup", key="fixed", config=GroupConfig(size=2))
        await eventually(lambda: all_running(world, 2) and list(states(world, "fixed").values()) == ["running"] * 2)
        every = running(world)
        await server.stop()
        groups = world.store.contents()[GROUPS]
        world.store.tamper(GROUPS, None)

        server = await world.start()
        await eventually(lambda: server.shard.listed and all(agent.connected for agent in world.agents.values()))
        assert [str(key) for key in server.shard.held_groups()] == ["default/fixed", "default/web"]
        admin = await shell(world)
        assert "web: group held" in (await admin.ok("status")).stdout
        assert running(world) == every
        world.store.tamper(GROUPS, groups)
        assert (await operator.call("RefreshConfig")).updated
        await eventually(lambda: not server.shard.held_groups())
        assert running(world) == every


async def test_a_held_group_is_deleted_by_name(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups={})) as world:
        server = await world.start()
        operator = await world.operator()
        await operator.call("UpsertGroup", key="web", config=GroupConfig(template="web", size=2))
        await eventually(lambda: all_running(world, 2))
        await server.stop()
        world.store.tamper(GROUPS, None)

        server = await world.start()
        await eventually(
            lambda: server.shard.listed and [str(k) for k in server.shard.held_groups()] == ["default/web"]
        )
        admin = await shell(world)
        assert "there is no group wob" in await admin.refused("group", "delete", "wob")
        assert "2" in (await admin.ok("group", "delete", "web", "--dry-run")).stdout
        assert len(running(world)) == 2
        await admin.ok("group", "delete", "web")
        await eventually(lambda: not running(world))
        assert not server.shard.held_groups()
