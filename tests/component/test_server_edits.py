"""A new configuration wakes the agents whose files or keys may be others, and nobody else."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from component.whole_server import Json, Running, World, config, states
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

DOCUMENT = config(
    groups={"acme": {"web": {"template": "web", "size": 2}, "api": {"template": "web", "size": 1}}},
    tenants=("acme",),
)
DOCUMENT["certificates"] = {"server": {"kind": "server", "cn": "{{ .Instance.ID }}"}}
DOCUMENT["templates"]["idle"] = {"kind": "web", "arch": "amd64", "instance_type": "small"}


def woken(server: Running) -> set[str]:
    """The groups whose agents were woken since the last time; of each, all or none."""
    found: dict[str, set[tuple[bool, bool]]] = {}
    for id, instance in server.shard.instances.items():
        presence = server.lead_now.agents.get(id)
        assert presence is not None
        found.setdefault(instance.group, set()).add((presence.changed.is_set(), presence.keys_changed.is_set()))
        presence.changed.clear()
        presence.keys_changed.clear()
    assert all(flags in ({(True, True)}, {(False, False)}) for flags in found.values())
    return {group for group, flags in found.items() if flags == {(True, True)}}


def group_vars(document: Json) -> None:
    document["groups"]["acme"]["web"]["vars"] = {"greeting": "good morning"}


def group_limits(document: Json) -> None:
    document["groups"]["acme"]["web"]["update"] = {"max_surge": 2}


def another_template(document: Json) -> None:
    document["templates"]["unused"] = document["templates"]["idle"]


def shared_template(document: Json) -> None:
    document["templates"]["web"]["files"]["motd"]["template"] = "{{ .Vars.greeting }}!"


def certificate(document: Json) -> None:
    """A key is needed for it too."""
    file = {"kind": "certificate", "template": "server", "key": {"source": "agent", "name": "web.pub"}}
    document["templates"]["web"]["files"]["server.crt"] = file


def place(document: Json) -> None:
    """Templates of every group can print it."""
    document["shard"]["infra"]["zone"] = "b"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (group_vars, {"web"}),
        (group_limits, set()),
        (another_template, set()),
        (shared_template, {"web", "api"}),
        (certificate, {"web", "api"}),
        (place, {"web", "api"}),
    ],
)
async def test_only_agents_that_are_concerned_are_woken(
    tmp_path: Path, edit: Callable[[Any], None], expected: set[str]
) -> None:
    async with World(tmp_path, DOCUMENT) as world:
        server = await world.start()
        await eventually(lambda: [*states(world, "web", "acme").values()] == ["running"] * 2)
        await eventually(lambda: len(world.agents) == 3 and all(agent.connected for agent in world.agents.values()))
        woken(server)
        document = copy.deepcopy(DOCUMENT)
        edit(document)
        world.configure(document)
        assert await server.active_config.refresh()
        assert woken(server) == expected


async def test_an_edit_through_the_api_wakes_its_group_alone(tmp_path: Path) -> None:
    async with World(tmp_path, DOCUMENT) as world:
        server = await world.start()
        operator = await world.operator("acme")
        made = GroupConfig(template="web", size=1)
        await operator.call("UpsertGroup", key="own", config=made)
        await eventually(lambda: len(world.agents) == 4 and all(agent.connected for agent in world.agents.values()))
        await eventually(lambda: all(map(server.lead_now.readiness.is_ready, server.shard.instances.values())))
        agents, woken_now = server.lead_now.agents, []
        nudge = agents.nudge
        agents.nudge = lambda ids=None: woken_now.append(ids) or nudge(ids)  # type: ignore[method-assign, func-returns-value]
        made.vars["greeting"] = "good evening"
        await operator.call("UpsertGroup", key="own", config=made)
        own = [id for id, instance in server.shard.instances.items() if instance.group == "own"]
        assert woken_now == [own]
        await operator.call("PauseGroup", key="own")
        assert woken_now[1:] in ([], [[]])
