"""Images under whole servers: what new instances are made of, and what happens when there is none."""

from pathlib import Path
from typing import Any

import pytest

from component.whole_server import Json, World, config, new_uuid, states
from nstance.config import load
from nstance.core import liveness
from nstance.model.ids import GroupKey, GroupName, TenantId
from nstance.model.rollout import Revision
from nstance.providers import errors
from nstance.providers.memory_behavior import Call, Outcome, Script
from nstance.providers.memory_cloud import Image
from nstance.server.waits import Waits
from nstance.tasks.backoff import Backoff
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

DOCS = Path(__file__).parents[2] / "docs" / "images-and-userdata.md"


def configuration(size: int = 1, *, fallback: str = "", **shard: Any) -> Json:
    made = config(
        groups={"acme": {"web": {"template": "web", "size": size}, "plain": {"template": "plain", "size": 1}}}, **shard
    )
    templates = made["templates"]
    templates["plain"] = templates["web"] | {"kind": "pln"}
    templates["web"] = templates["web"] | {"args": {"ImageId": "{{ .Image.base }}"}}
    image = {"provider": "memory", "filters": [{"name": "name", "values": ["base-*"]}], "fallback": fallback}
    return made | {"images": {"base": image}}


def publish(world: World, id: str, created: float) -> None:
    world.cloud.images.append(Image(id=id, created=created, attributes={"name": f"base-{id}"}))


def made_of(world: World, group: str = "web") -> list[str]:
    """The images of the group's instances, oldest first."""
    return [str(world.agents[id]._request.args.get("ImageId")) for id in sorted(states(world, group, "acme"))]


async def running(world: World, count: int) -> None:
    await eventually(lambda: list(states(world, "web", "acme").values()).count("running") == count)


class QuickWorld(World):
    waits = Waits(image_retry=Backoff(0.05, 600.0))


class NoImages(Script):
    def outcome(self, call: Call, id: Any) -> Outcome:
        if call is Call.FIND_IMAGE:
            return Outcome(applied=False, error=errors.UnavailableError("the cloud is away"))
        return super().outcome(call, id)


async def test_a_new_image_is_for_new_instances_and_rotates_nobody(tmp_path: Path) -> None:
    async with QuickWorld(tmp_path, configuration(1, image_refresh_interval="100ms")) as world:
        publish(world, "img-1", 1.0)
        server = await world.start()
        await running(world, 1)
        publish(world, "img-2", 2.0)
        await eventually(lambda: server.lead_now.supplies.images.values() == {"base": "img-2"})
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="web", config=GroupConfig(size=2))
        await running(world, 2)
        assert made_of(world) == ["img-1", "img-2"]
        assert set(states(world, "web", "acme").values()) == {"running"}


async def test_without_an_image_the_group_waits_and_others_do_not(tmp_path: Path) -> None:
    async with QuickWorld(tmp_path, configuration(1)) as world:
        await world.start()
        operator = await world.operator("acme")
        await eventually(lambda: list(states(world, "plain", "acme").values()) == ["running"])
        await eventually(lambda: "cannot be found" in str(world.leader.lead_now.blocked_groups.reasons))
        shown = {group.key: group.last_error for group in (await operator.call("ListGroups")).groups}
        assert "the image base cannot be found: no image fits" in shown["web"]
        assert shown["plain"] == ""
        assert states(world, "web", "acme") == {}
        wanted = await operator.call("CreateInstance", group="web", uuid=new_uuid())
        await eventually(lambda: world.leader.shard.facts[wanted.instance_id].calls.create_attempts)
        assert states(world, "web", "acme") == {wanted.instance_id: "pending"}
        publish(world, "img-1", 1.0)
        await running(world, 2)  # the one on demand too: its ID was kept
        assert made_of(world) == ["img-1", "img-1"]
        reasons = [event.reason for event in (await operator.call("ListEvents", group="web")).events]
        assert [reason for reason in reasons if reason in ("blocked", "recovered")] == ["blocked", "recovered"]


async def test_a_lost_instance_is_replaced_although_the_new_image_is_missing(tmp_path: Path) -> None:
    """A mistyped image stopped not only the rollout, but every replacement."""
    made = configuration(2)
    made["templates"]["web"]["ready_timeout"] = "500ms"
    async with QuickWorld(tmp_path, made) as world:
        publish(world, "img-1", 1.0)
        server = await world.start()
        await running(world, 2)
        await eventually(lambda: "complete" in [r.outcome.value for r in revisions(world)])
        made["images"]["other"] = made["images"]["base"] | {"filters": [{"name": "name", "values": ["othr-*"]}]}
        made["templates"]["web"]["args"] = {"ImageId": "{{ .Image.other }}"}
        world.configure(made)
        await server.active_config.refresh()
        await eventually(lambda: revisions(world)[-1].outcome.value == "halted")
        assert "the image other cannot be found" in revisions(world)[-1].message
        before = states(world, "web", "acme")
        world.cloud.stop(min(before))
        await eventually(lambda: states(world, "web", "acme").keys() - before.keys())
        await running(world, 2)
        assert made_of(world)[-1] == "img-1"


def revisions(world: World) -> tuple[Revision, ...]:
    record = world.leader.shard.group_records.get(GroupKey(TenantId("acme"), GroupName("web")))
    return record.revisions if record is not None else ()


async def test_the_fallback_serves_when_the_lookup_fails(tmp_path: Path) -> None:
    async with QuickWorld(tmp_path, configuration(1, fallback="img-0")) as world:
        world.cloud.behavior = NoImages()
        await world.start()
        await running(world, 1)
        assert made_of(world) == ["img-0"]


async def test_the_last_good_image_outlives_the_server(tmp_path: Path) -> None:
    async with QuickWorld(tmp_path, configuration(1, fallback="img-0")) as world:
        publish(world, "img-1", 1.0)
        first = await world.start()
        await running(world, 1)
        await first.stop()
        world.cloud.behavior = NoImages()
        server = await world.start()
        await eventually(lambda: server.lead_now.supplies.images.problem("base") == "the cloud is away")
        world.configure(configuration(2, fallback="img-0"))
        await server.active_config.refresh()
        await running(world, 2)
        assert made_of(world) == ["img-1", "img-1"]


async def test_the_console_output_of_a_failed_vm_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent never registers: the console may say why. The nonce in it is not repeated."""
    monkeypatch.setattr(liveness, "RECONNECT_MIN_SECONDS", 0.1)
    timings = {
        "health": {"suspect_after": "100ms", "dead_after": "1s"},
        "garbage_collection": {"interval": "200ms", "registration_timeout": "3s"},
    }
    group = {"acme": {"web": {"template": "web", "size": 1}}}
    async with QuickWorld(tmp_path, config(groups=group, **timings), agents=False) as world:
        server = await world.start()
        [id] = await eventually(lambda: states(world, "web", "acme"))
        await eventually(lambda: world.cloud.vms())
        nonce = server.lead_now.issuer.token(server.shard.instances[id])
        world.cloud.write_console(id, f"{'x' * 5000}\nnonce {nonce}\n\x1b[31mno route to host")
        operator = await world.operator("acme")
        await eventually(lambda: states(world, "web", "acme")[id] == "deleted")
        events = (await operator.call("ListEvents", instance_id=id)).events
        messages = [event.message for event in events if event.reason == "unregistered"]
        [(title, _, console)] = [message.partition("\n") for message in messages][1:]
        assert (title, len(console)) == ("last console output:", 2048)
        assert console.endswith("\nnonce [nonce]\n[31mno route to host")


async def test_timings_apply_without_a_restart(tmp_path: Path) -> None:
    """Creates at once, from one to all; and the time that a call may take."""
    group = {"acme": {"web": {"template": "web", "size": 6}}}
    async with QuickWorld(tmp_path, config(groups=group, create_concurrency=1), agents=False) as world:
        world.cloud.behavior = Script(usual=Outcome(before=0.0))
        world.cloud.behavior.then(Call.CREATE, *[Outcome(before=30.0)] * 6)
        server = await world.start()
        await eventually(lambda: world.cloud.calls[Call.CREATE] == 1)
        await eventually(lambda: len(states(world, "web", "acme")) == 6)
        world.configure(config(groups=group, create_concurrency=6, request_timeout="1s"))
        await server.active_config.refresh()
        await eventually(lambda: world.cloud.calls[Call.CREATE] >= 6)
        # What began under the new time limit has given up, and is asked for again; the first one still waits.
        await eventually(lambda: list(states(world, "web", "acme").values()).count("starting") >= 5)


async def test_the_example_of_the_docs() -> None:
    text = DOCS.read_text().split("```jsonc\n")[1].split("```")[0]
    settings = load.load(text.encode(), source="docs", shard=None)
    assert list(settings.images) == ["base"]
    assert settings.shard.userdata_hosts == ("files.internal",)
