"""A secret or an object that changes while instances run: they get it without a change of the configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from component.whole_server import CLUSTER, World, config, states
from nstance.objects.memory import Fate, Verb
from nstance.secretstore import sealed, sealing
from nstance.server.waits import Waits
from support.eventually import eventually


class QuickWorld(World):
    waits = Waits(source_check=0.05)


def configured(size: int = 2) -> dict[str, Any]:
    found = config(groups={"default": {"web": {"template": "web", "size": size}}})
    found["cluster"]["secrets"]["cache_ttl"] = "0s"
    found["templates"]["web"]["files"] = {
        "password": {"kind": "secret", "source": "db-password"},
        "logo": {"kind": "storage", "source": "blobs/logo"},
        "plain": {"kind": "string", "template": "same"},
    }
    return found


def secrets(world: World) -> sealed.SealedStore:
    return sealed.SealedStore(
        world.store, prefix="cluster/secret/", sealer=sealing.Unsealed(), cluster=CLUSTER, rng=world.rng
    )


def all_have(world: World, name: str, content: bytes) -> Callable[[], bool]:
    def check() -> bool:
        ids = states(world, "web")
        return len(ids) > 0 and all(id in world.agents and world.agents[id].files.get(name) == content for id in ids)

    return check


async def test_running_instances_get_a_rotated_secret_and_a_new_object(tmp_path: Path) -> None:
    async with QuickWorld(tmp_path, configured()) as world:
        await secrets(world).put("db-password", b"one")
        world.store.tamper("blobs/logo", b"old logo")
        await world.start()
        await eventually(all_have(world, "password", b"one"))
        hashes = {agent.config_hash for agent in world.agents.values()}
        ids = set(states(world, "web"))
        await secrets(world).put("db-password", b"two")
        await eventually(all_have(world, "password", b"two"))
        world.store.tamper("blobs/logo", b"new logo")
        await eventually(all_have(world, "logo", b"new logo"))
        assert all_have(world, "plain", b"same")()
        assert set(states(world, "web")) == ids  # nothing was replaced
        assert {agent.config_hash for agent in world.agents.values()} == hashes


async def test_a_secret_that_changed_while_nobody_led_is_noticed(tmp_path: Path) -> None:
    """The new leader knows from the agents what they have."""
    async with QuickWorld(tmp_path, configured()) as world:
        await secrets(world).put("db-password", b"one")
        world.store.tamper("blobs/logo", b"logo")
        server = await world.start()
        await eventually(all_have(world, "password", b"one"))
        await server.stop()
        await secrets(world).put("db-password", b"two")
        await world.start()
        await eventually(all_have(world, "password", b"two"))


async def test_a_secret_that_cannot_be_read_any_more_takes_nothing_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with QuickWorld(tmp_path, configured(1)) as world:
        await secrets(world).put("db-password", b"one")
        world.store.tamper("blobs/logo", b"logo")
        await world.start()
        admin = await world.operator()
        await eventually(all_have(world, "password", b"one"))
        await secrets(world).delete("db-password")
        await eventually(lambda: "failed to look for a new version of a file" in caplog.text)
        assert all_have(world, "password", b"one")()
        [group] = (await admin.call("ListGroups")).groups
        assert (group.ready_size, list(group.blocked)) == (1, [])


async def test_all_agents_of_a_group_share_one_look(tmp_path: Path) -> None:
    asked: list[str] = []

    def count(verb: Verb, key: str) -> Fate:
        if key == "cluster/secret/db-password":
            asked.append(verb.value)
        return Fate(before=0.01)

    many = configured(8)
    many["cluster"]["secrets"]["cache_ttl"] = "1h"
    async with QuickWorld(tmp_path, many) as world:
        await secrets(world).put("db-password", b"one")
        world.store.tamper("blobs/logo", b"logo")
        world.fate = count
        await world.start()
        await eventually(lambda: len(states(world, "web")) == 8)
        await eventually(all_have(world, "password", b"one"))
        assert len(asked) == 1
