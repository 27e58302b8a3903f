"""Mass absence with a whole server: a listing that shows nothing stops deletions, says so, and says when it is over."""

from pathlib import Path
from typing import Any

from component.admin_shell import shell
from component.whole_server import World, config, states
from nstance.providers.memory_behavior import Call, Outcome, Script
from support.eventually import eventually

VMS = 5


class Forgetful(Script):
    """Listings are empty, and do not say so."""

    forgets = False

    def outcome(self, call: Call, id: Any) -> Outcome:
        return Outcome(first=0) if call is Call.LIST and self.forgets else super().outcome(call, id)


async def test_a_mass_absence_is_told_when_it_begins_and_when_it_is_over(tmp_path: Path) -> None:
    collecting = {"interval": "200ms", "registration_timeout": "60s"}
    groups = {"default": {"web": {"template": "web", "size": VMS}}}
    async with World(tmp_path, config(groups=groups, garbage_collection=collecting)) as world:
        behaviour = world.cloud.behaviour = Forgetful()
        server = await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        # A VM that was never listed says nothing against a listing that lacks it.
        await eventually(lambda: all(instance.seen for instance in server.shard.instances.values()))
        before = dict(states(world, "web"))
        behaviour.forgets = True
        await eventually(lambda: server.shard.mass_absence)
        behaviour.forgets = False
        await eventually(lambda: not server.shard.mass_absence)
        messages = [e["message"] for e in await admin.json("events") if e["reason"] == "mass-absence"]
        assert [("deletions stop" in m, "deletions go on" in m) for m in messages[-2:]] == [
            (True, False),
            (False, True),
        ]
        shown = (await admin.ok("status")).stdout
        assert "deletions stop" not in shown
        assert "deletions go on" in shown
        assert states(world, "web") == before
