"""What is wrong with a whole shard is an alarm as long as it lasts, wherever people look, also for those who look late."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from component.admin_shell import shell
from component.http_world import Browser, get_json, served
from component.whole_server import World, config, states
from nstance.model.roles import Role
from nstance.objects import errors as storage
from nstance.objects.memory import Fate, Verb
from nstance.providers import errors
from nstance.providers.memory_behavior import Call, Outcome, Script
from nstance.providers.port import Instances, Status, Vm
from support.eventually import eventually

SIZE = 5
GROUPS = {"default": {"web": {"template": "web", "size": SIZE}}}
COLLECTING = {"interval": "200ms", "registration_timeout": "60s"}


class Cloud(Script):
    forgets = False  # listings are empty, and do not say so
    is_away = False
    is_dry = False

    def outcome(self, call: Call, id: Any) -> Outcome:
        if call is Call.LIST and self.is_away:
            return Outcome(error=errors.UnavailableError("the region is down"))
        if self.forgets and call in (Call.LIST, Call.GET):  # a lookup that finds a VM would end its absence
            return Outcome(first=0) if call is Call.LIST else Outcome(error=errors.UnavailableError("try again"))
        if call is Call.CREATE and self.is_dry:
            return Outcome(applied=False, error=errors.NoCapacityError("no small ones"))
        return super().outcome(call, id)


class AlarmWorld(World):
    problem = ""  # of all VMs

    def open_provider(self, name: str) -> Instances:
        provider = super().open_provider(name)
        assert provider is not None
        list_all = provider.list

        async def list_paused() -> Sequence[Vm]:
            vms = await list_all()
            if not self.problem:
                return vms
            return [replace(vm, status=Status.REPAIRING, problem=self.problem) for vm in vms]

        provider.list = list_paused  # type: ignore[method-assign]
        return provider


@dataclass
class Looking:
    world: AlarmWorld
    cloud: Cloud
    admin: Any
    browser: Browser

    async def shown(self) -> dict[str, str]:
        """By those who look now for the first time; those who have looked all the time see the same."""
        [status] = (await self.admin.json("status"))["shards"]
        return {each["kind"]: each["message"] for each in status["alarms"]}

    async def alarmed(self, kind: str, text: str) -> None:
        async def found() -> bool:
            live = (await get_json(self.browser, "/v1/alarms"))["alarms"]
            kept = {each["kind"]: each["message"] for each in live}
            return text in kept.get(kind, "") and text in (await self.shown()).get(kind, "")

        await eventually(found, f"{kind}: {text}")
        screen = " ".join((await self.admin("status")).stdout.replace("│", " ").split())
        assert f"! {text}" in screen or text in screen, screen

    async def calm(self, *but: str) -> None:
        """Other alarms than these are over."""

        async def found() -> bool:
            live = (await get_json(self.browser, "/v1/alarms"))["alarms"]
            return {each["kind"] for each in live} <= {*but} and set(await self.shown()) <= {*but}

        await eventually(found, "no alarm")


@contextlib.asynccontextmanager
async def looking(dir: Path, **shard: Any) -> AsyncIterator[Looking]:
    async with AlarmWorld(dir, config(groups=GROUPS, garbage_collection=COLLECTING, **shard)) as world:
        cloud = world.cloud.behavior = Cloud()
        server = await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        await eventually(lambda: all(instance.seen for instance in server.shard.instances.values()))
        async with served(world, role=Role.VIEWER) as browser:
            look = Looking(world, cloud, admin, browser)
            await look.calm()
            yield look


async def test_listings_that_cannot_be_believed_and_vms_that_stand_still(tmp_path: Path) -> None:
    async with looking(tmp_path) as look:
        before = dict(states(look.world, "web"))
        look.cloud.forgets = True
        await look.alarmed("mass-absence", "5 VMs are missing from one listing: deletions stop")
        [status] = (await look.admin.json("status"))["shards"]
        assert not status["healthy"]
        look.cloud.forgets = False
        await look.calm()

        look.cloud.is_away = True
        await look.alarmed("provider", "does not list the VMs")
        await look.alarmed("provider", "the region is down")
        look.cloud.is_away = False
        await look.calm()

        look.world.problem = "the disk of the host is full"
        await look.alarmed("paused-vms", "5 VMs paused: the disk of the host is full")
        look.world.problem = ""
        await look.calm()
        assert states(look.world, "web") == before


async def test_deletions_that_wait_for_the_first_listing_of_a_leader(tmp_path: Path) -> None:
    async with AlarmWorld(tmp_path, config(groups=GROUPS, garbage_collection=COLLECTING)) as world:
        cloud = world.cloud.behavior = Cloud()
        cloud.is_away = True
        await world.start()
        admin = await shell(world)
        async with served(world, role=Role.VIEWER) as browser:
            look = Looking(world, cloud, admin, browser)
            await look.alarmed("provider", "nothing is deleted: the region is down")
            cloud.is_away = False
            await look.calm()


async def test_mass_silence_lasts_until_the_agents_return_or_are_expected_no_more(tmp_path: Path) -> None:
    async with looking(tmp_path, health={"suspect_after": "4s"}) as look:
        for agent in look.world.agents.values():
            agent.mute()
        await look.alarmed("mass-silence", "agents are unresponsive at once")
        for agent in look.world.agents.values():
            agent.speak()
        await look.calm()
        for agent in look.world.agents.values():
            agent.mute()
        await look.alarmed("mass-silence", "agents are unresponsive at once")
        for id in states(look.world, "web"):
            look.world.cloud.stop(id)
        look.world.configure(config(garbage_collection=COLLECTING, health={"suspect_after": "4s"}))
        await look.admin.ok("config", "refresh")
        await look.calm("interruptions")


async def test_failed_requests_to_storage(tmp_path: Path) -> None:
    async with looking(tmp_path) as look:
        left = 3

        def failing(verb: Verb, key: str) -> Fate:
            nonlocal left
            left -= 1
            return Fate(error=storage.UnavailableError("503 Slow Down")) if left >= 0 else Fate()

        look.world.fate = failing
        await look.alarmed("storage", "requests to object storage failed within the last five minutes")


async def test_a_shard_without_capacity(tmp_path: Path) -> None:
    settings = config(groups=GROUPS, garbage_collection=COLLECTING)
    settings["shard"]["capacity_retry"] = "5s"
    async with AlarmWorld(tmp_path, settings) as world:
        cloud = world.cloud.behavior = Cloud()
        cloud.is_dry = True
        await world.start()
        admin = await shell(world)
        async with served(world, role=Role.VIEWER) as browser:
            look = Looking(world, cloud, admin, browser)
            await look.alarmed("blocked", "capacity")
            cloud.is_dry = False
            await look.calm()
