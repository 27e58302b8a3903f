"""Load balancers by webhook and file under a whole server: members follow the group, whatever the service does."""

import json
from pathlib import Path
from typing import Any

import pytest

from component.test_server_load_balancers import QUICK, vms
from component.whole_server import Json, World, config, states
from nstance.clock import SystemClock, SystemRng
from nstance.config import jsonc, load
from nstance.server import options, validation
from support import docs_pages, member_service
from support.eventually import eventually
from support.member_service import MemberService


def configuration(size: int, balancers: Json, **shard: Any) -> Json:
    groups = {"acme": {"web": {"template": "web", "size": size, "load_balancers": list(balancers)}}}
    made = config(groups=groups, **(shard or QUICK)) | {"load_balancers": balancers}
    made["cluster"] = {**made["cluster"], "secrets": {"provider": "env"}}
    return made


async def test_members_of_a_webhook_and_a_file_follow_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSTANCE_SECRET_LB_FRONT", "s3cret")
    path = tmp_path / "front.json"

    def in_file() -> set[str]:
        return {each["provider_id"] for each in json.loads(path.read_text())["members"]} if path.exists() else set()

    async with member_service.running(MemberService(b"s3cret")) as service:
        balancers = {
            "hook": {"provider": "webhook", "url": service.url, "secret": "lb-front", "port": 8080},
            "list": {"provider": "file", "path": str(path)},
        }
        service.answers = [503, 500, 0]  # the first calls fail in three ways
        async with World(tmp_path, configuration(2, balancers)) as world:
            server = await world.start()
            await eventually(lambda: len(vms(world)) == 2 and set(service.members) == in_file() == vms(world))
            assert {(each["group"], each["port"], bool(each["ip4"])) for each in service.members.values()} == {
                ("web", 8080, True)
            }
            service.members["somebody-elses"] = {"provider_id": "somebody-elses"}
            service.members.pop(next(iter(vms(world))))  # by hand
            await eventually(lambda: set(service.members) == {*vms(world), "somebody-elses"})
            world.configure(configuration(0, balancers))
            await server.active_config.refresh()
            await eventually(lambda: set(states(world, "web", "acme").values()) == {"deleted"})
            assert (set(service.members), in_file()) == ({"somebody-elses"}, set())


async def test_a_service_that_is_away_delays_a_deletion_only_for_a_while(tmp_path: Path) -> None:
    balancers = {"hook": {"provider": "webhook", "url": "http://127.0.0.1:1/members", "timeout": "1s"}}
    async with World(tmp_path, configuration(1, balancers)) as world:
        server = await world.start()
        await eventually(lambda: len(vms(world)) == 1)
        world.configure(configuration(0, balancers))
        await server.active_config.refresh()
        await eventually(lambda: set(states(world, "web", "acme").values()) == {"deleted"})


async def test_a_list_that_moves_is_filled_at_once(tmp_path: Path) -> None:
    """Not only with the next garbage collection."""
    rarely = {"garbage_collection": {"interval": "10m", "registration_timeout": "20m"}}

    def at(path: Path) -> Json:
        return configuration(2, {"list": {"provider": "file", "path": str(path)}}, **rarely)

    def members(path: Path) -> set[str]:
        return {each["provider_id"] for each in json.loads(path.read_text())["members"]} if path.exists() else set()

    old, new = tmp_path / "old.json", tmp_path / "new.json"
    async with World(tmp_path, at(old)) as world:
        server = await world.start()
        await eventually(lambda: len(vms(world)) == 2 and members(old) == vms(world))
        world.configure(at(new))
        await server.active_config.refresh()
        await eventually(lambda: members(new) == vms(world))


def test_the_example_on_the_page_is_valid() -> None:
    text = docs_pages.blocks("load-balancers.md", "jsonc")[1]
    balancers = jsonc.read(f"{{{text}}}", source="docs").value["load_balancers"]
    made = configuration(1, balancers)
    loaded = load.load(json.dumps(made))
    assert {each.provider for each in loaded.load_balancers.values()} == {"webhook", "file"}


async def test_the_check_before_a_start_asks_every_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSTANCE_SECRET_GOOD", "s3cret")
    monkeypatch.setenv("NSTANCE_SECRET_WRONG", "other")
    monkeypatch.setenv("NO_SUCH_KEY", "0" * 64)
    async with member_service.running(MemberService(b"s3cret")) as service:
        balancers = {
            name: {"provider": "webhook", "url": service.url, "secret": name} for name in ("good", "wrong", "missing")
        }
        made = configuration(1, {**balancers, "list": {"provider": "file", "path": str(tmp_path / "x")}})
        made["cluster"]["secrets"]["encryption_key"] = {"provider": "env", "source": "NO_SUCH_KEY"}
        place = tmp_path / "bucket" / "shard" / "one" / "config.jsonc"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(made))
        words = ["--storage", "file", "--bucket", str(tmp_path / "bucket"), "--shard", "one", "--validate", "--online"]
        found = await validation.validate(options.parse(words, version=""), SystemClock(), SystemRng())
        assert service.members == {}
    faults = {each.path: each.message for each in found if each.path.startswith("load_balancers")}
    assert set(faults) == {"load_balancers.wrong", "load_balancers.missing"}
    assert "check the secret 'wrong'" in faults["load_balancers.wrong"]
    assert "NSTANCE_SECRET_MISSING" in faults["load_balancers.missing"]
