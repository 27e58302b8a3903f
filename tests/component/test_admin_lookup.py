"""How people find things: parts of IDs, completion, the life and the logs of an instance, and waits, at whole servers."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from component.admin_shell import Shell, shell
from component.whole_server import SHARD, World, config, states
from nstance.model.decision import ReasonCode
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, InstanceId
from nstance.server.leader.assembly import record_console_output
from support.eventually import eventually

WEB = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}


async def test_a_part_of_an_id_is_enough_if_it_is_unique(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=WEB)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        first, second = (await admin.ok("instance", "list", "-o", "name")).stdout.split()
        for part in (first[:-1], first[4:-1], first[-6:]):
            assert (await admin.json("instance", "show", part))["instance_id"] == first
        refused = await admin.refused("instance", "delete", first[:6])
        assert f"stands for 2 instances: {first}, {second}; give more of the ID" in refused
        assert set(states(world, "web").values()) == {"running"}  # nothing was deleted
        assert "no instance begins or ends with web-0zzz" in await admin.refused("instance", "logs", "web-0zzz")
        events = await admin.json("events", "--instance", first[-6:])
        assert {each["instance_id"] for each in events} == {first}
        await admin.ok("instance", "replace", second[-6:])
        await admin.ok("wait")
        assert states(world, "web")[InstanceId(second)] == "deleted"


async def test_a_part_of_an_id_is_refused_while_a_shard_does_not_answer(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=WEB)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        first, _ = (await admin.ok("instance", "list", "-o", "name")).stdout.split()
        servers = {"NSTANCE_ADMIN_SERVERS": admin.environment["NSTANCE_ADMIN_SERVERS"] + ",dead=127.0.0.1:1"}
        assert "shard dead" in await admin.refused("instance", "delete", first[-6:], "--all-shards", **servers)
        assert set(states(world, "web").values()) == {"running"}
        shown = await admin("instance", "show", first, "--all-shards", "-o", "name", **servers)  # the whole ID works
        assert first in shown.stdout


async def test_the_life_of_an_instance_is_shown_from_its_intent_to_its_end(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=WEB)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        first, _ = (await admin.ok("instance", "list", "-o", "name")).stdout.split()
        shown = await admin.json("instance", "show", first)
        steps = [each["step"] for each in shown["timeline"]]
        assert steps[0] == "intent"
        assert [each for each in steps if each in ("created", "registered", "ready")] == [
            "created",
            "registered",
            "ready",
        ]
        assert shown["timeline"][0]["after_ms"] == 0
        assert all(each["after_ms"] >= 0 and each["message"] for each in shown["timeline"])
        assert {"load1", "memory_percent", "disk_percent"} <= shown["report"].keys()
        text = (await admin.ok("instance", "show", first)).stdout
        assert "usage" in text
        assert "memory " in text
        assert text.splitlines()[-1].startswith("now ")

        await admin.ok("instance", "delete", first)
        await eventually(lambda: states(world, "web").get(InstanceId(first)) == "deleted")
        ended = await admin.json("instance", "show", first)
        assert ended["report"] is None
        assert "requested" in [each["step"] for each in ended["timeline"]]
        assert "\nnow " not in (await admin.ok("instance", "show", first)).stdout


async def test_logs_show_events_and_the_console_output_that_was_kept(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=WEB)) as world:
        server = await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        first, second = (await admin.ok("instance", "list", "-o", "name")).stdout.split()
        record = server.shard.instances[InstanceId(first)]
        record_console_output(server.lead_now.issuer, server.shard.event_log, record, "booting\n\x1b[2Jkernel panic\n")

        async def console() -> str:
            return (await admin.ok("instance", "logs", first, "--console")).stdout

        assert await eventually(console) == "booting\n[2Jkernel panic\n"
        text = (await admin.ok("instance", "logs", first[-6:])).stdout
        assert "registered" in text
        assert "last console output:" in text
        assert "\n    kernel panic" in text.replace("[2J", "")
        nothing = await admin.ok("instance", "logs", second, "--console")
        assert nothing.stdout == ""
        assert "the server has no console output of it" in nothing.stderr
        key = GroupKey(DEFAULT_TENANT, GroupName("web"))
        server.shard.event_log.record(key, ReasonCode.SECURITY, "a knock", InstanceId(second))

        async def knock() -> bool:
            return "a knock" in (await admin.ok("instance", "logs", second)).stdout

        await eventually(knock)


async def complete(admin: Shell, *words: str, kind: str = "bash", **environment: str) -> list[str]:
    """What a shell gets, from a process as a shell starts it."""
    line = ["nstance-admin", *words]
    asked = {
        "_NSTANCE_ADMIN_COMPLETE": f"{kind}_complete",
        "COMP_WORDS": " ".join(line),
        "COMP_CWORD": words[-1] if kind == "fish" else str(len(words)),
    }
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from nstance.admin.main import main; main()"),
        env={**os.environ, **admin.environment, **asked, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, problems = await asyncio.wait_for(running.communicate(), 60)
    assert problems == b""  # a person is typing
    return output.decode().splitlines()


async def completes_to(admin: Shell, words: list[str], expected: list[str], kind: str = "bash") -> None:
    """Asked again on a busy machine: the deadline is short for people."""

    async def look() -> bool:
        return await complete(admin, *words, kind=kind) == expected

    await eventually(look, f"{words} are completed to {expected}")


async def test_groups_instances_shards_and_templates_are_completed(tmp_path: Path) -> None:
    groups = {"default": {**WEB["default"], "api": {"template": "web", "size": 0}}}
    settings = config(groups=groups)
    settings["templates"]["unused"] = settings["templates"]["web"]
    async with World(tmp_path, settings) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        first, second = (await admin.ok("instance", "list", "-o", "name")).stdout.split()
        for words, expected in (
            (["group", "show", ""], ["plain,api", "plain,web"]),
            (["group", "show", "w"], ["plain,web"]),
            (["wait", "web", "a"], ["plain,api"]),
            (["instance", "show", "web-"], [f"plain,{first}", f"plain,{second}"]),
            (["events", "--instance", first[:-1]], [f"plain,{first}"]),
            (["group", "create", "new", "--template", ""], ["plain,unused", "plain,web"]),
            (["group", "list", "--shard", ""], [f"plain,{SHARD}"]),
            (["group", "list", "-o", "js"], ["plain,json", "plain,jsonpath="]),
        ):
            await completes_to(admin, words, expected)
        await completes_to(admin, ["group", "show", "w"], ["plain,web\t2 of 2 ready"], kind="fish")
        await completes_to(admin, ["group", "show", "w"], ["plain", "web", "2 of 2 ready"], kind="zsh")


@pytest.mark.parametrize("servers", ["zone-a=127.0.0.1:1", "nonsense", ""])
async def test_completion_is_silent_if_nobody_answers(tmp_path: Path, servers: str) -> None:
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        assert await complete(admin, "group", "show", "w", NSTANCE_ADMIN_SERVERS=servers) == [""]


async def test_changes_can_be_waited_for(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        made = await admin.ok("group", "create", "web", "--template", "web", "--size", "2", "--wait")
        assert "stable" in made.stderr
        assert sorted(states(world, "web").values()) == ["running", "running"]
        assert "/2" in made.stderr  # steps
        await admin.ok("group", "update", "web", "--instance-type", "large", "--drain-timeout", "0", "--wait")
        types = (await admin.ok("instance", "list", "-o", "jsonpath={[*].instance_type}")).stdout.split()
        assert types == ["large", "large"]
        world.agents_may_register.clear()
        refused = await admin("group", "scale", "web", "3", "--wait", "--within", "200ms")
        assert refused.exit_code == 1
        assert "not stable after 0.2 s: web 2/3 ready" in refused.stderr
        dry = await admin.ok("group", "scale", "web", "1", "--wait", "--dry-run")
        assert "nothing was changed" in dry.stderr


async def test_a_mistyped_name_is_answered_with_the_near_one(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=WEB)) as world:
        await world.start()
        admin = await shell(world)
        for words, expected in (
            (["group", "show", "wbe"], "did you mean web?"),
            (["wait", "wbe"], "did you mean web?"),
            (["instance", "list", "--group", "wbe"], "did you mean web?"),
            (["group", "create", "new", "--template", "wbe"], "did you mean web?"),
        ):
            assert expected in await admin.refused(*words), words
        warned = await admin.ok("group", "update", "web", "--instance-type", "smal", "--dry-run")
        assert "warning: no group has the instance type smal yet (did you mean small?)" in warned.stderr
