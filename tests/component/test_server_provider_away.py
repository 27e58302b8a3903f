"""A provider that does not answer is shown by `status` while it lasts, and its return too."""

from pathlib import Path
from typing import Any

from component.admin_shell import shell
from component.test_server_alarms import AlarmWorld
from component.whole_server import World, config, states
from nstance.providers import errors
from nstance.providers.memory_behavior import Call, Outcome, Script
from support.eventually import eventually


class Away(Script):
    is_away = False

    def outcome(self, call: Call, id: Any) -> Outcome:
        error = errors.UnavailableError("the region is down")
        return Outcome(error=error) if self.is_away and call is Call.LIST else super().outcome(call, id)


async def test_a_provider_that_does_not_list_is_shown_until_it_does(tmp_path: Path) -> None:
    groups = {"default": {"web": {"template": "web", "size": 2}}}
    collecting = {"interval": "200ms", "registration_timeout": "60s"}
    async with World(tmp_path, config(groups=groups, garbage_collection=collecting)) as world:
        behavior = world.cloud.behavior = Away()
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        before = dict(states(world, "web"))

        async def shown() -> str:
            return (await admin("status")).stdout

        assert "provider" not in await shown()
        behavior.is_away = True
        await eventually(lambda: _has(admin, "the region is down"))
        assert states(world, "web") == before
        behavior.is_away = False
        await eventually(lambda: _has(admin, "lists the VMs again"))
        assert "the region is down" not in await shown()


async def test_vms_that_stand_still_are_shown_with_the_reason_until_they_continue(tmp_path: Path) -> None:
    groups = {"default": {"web": {"template": "web", "size": 2}}}
    collecting = {"interval": "200ms", "registration_timeout": "60s"}
    async with AlarmWorld(tmp_path, config(groups=groups, garbage_collection=collecting)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        before = dict(states(world, "web"))
        world.problem = "the disk is full"
        await eventually(lambda: _has(admin, "provider 2 VMs paused: the disk is full"))
        id = (await admin.ok("instance", "list", "-o", "name")).stdout.split()[0]
        assert "the disk is full" in (await admin.ok("events", "--instance", id)).stdout
        world.problem = ""
        await eventually(lambda: _has(admin, "no VM is paused any more"))
        assert "the VM continued" in (await admin.ok("events", "--instance", id)).stdout
        assert states(world, "web") == before


async def _has(admin: Any, text: str) -> bool:
    output = " ".join((await admin("status")).stdout.split())  # long lines are wrapped
    return text in output
