"""Rollouts as the command line and the HTTP API show and steer them."""

import json
from pathlib import Path
from typing import Any

from component.admin_shell import shell
from component.test_admin_shard_serve import ALL, HERE, get_json, post, served
from component.whole_server import World, config
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName
from nstance.model.rollout import Outcome
from support.eventually import eventually

KEY = GroupKey(DEFAULT_TENANT, GroupName("web"))


def shard_config(**update: Any) -> dict[str, Any]:
    group = {"template": "web", "size": 2, "drain_timeout": "0", "update": update or {"max_surge": 2}}
    return config(groups={"default": {"web": group}})


async def reached(world: World, wanted: Outcome, *, revisions: int) -> None:
    def found() -> bool:
        record = world.leader.shard.group_records.get(KEY)
        return record is not None and len(record.revisions) == revisions and record.revisions[-1].outcome is wanted

    await eventually(found)


async def test_the_command_line(tmp_path: Path) -> None:
    async with World(tmp_path, shard_config(canary=1, max_surge=1)) as world:
        await world.start()
        admin = await shell(world)
        await reached(world, Outcome.COMPLETE, revisions=1)
        assert "no earlier revision" in await admin.refused("group", "rollback", "web")
        assert "neither paused nor halted" in await admin.refused("group", "resume-rollout", "web")
        planned = await admin.ok("group", "plan", "web", "--instance-type", "large")
        assert "2 instances to replace, at most 1 at a time; duration: unknown" in planned.stderr
        await admin.ok("group", "update", "web", "--instance-type", "large")
        await reached(world, Outcome.PAUSED, revisions=2)
        assert "rollout paused: paused after 1 instance until" in (await admin.ok("group", "list")).stdout.replace(
            "\n", " "
        )
        planned = await admin.ok("group", "plan", "web")
        assert "the rollout is paused" in planned.stderr
        assert "hold" in planned.stdout
        dry = await admin.json("group", "resume-rollout", "web", "--dry-run")
        assert {each["action"] for each in dry} >= {"drain"}
        await admin.ok("group", "resume-rollout", "web")
        await reached(world, Outcome.COMPLETE, revisions=2)
        history = await admin.json("group", "history", "web")
        assert [(each["outcome"], each["failures"]) for each in history] == [("complete", 0), ("complete", 0)]
        first = history[1]["revision"]
        assert (await admin.json("group", "rollback", "web", "--to", first[:6], "--dry-run"))[0]["group"] == "web"
        assert "is no revision" in await admin.refused("group", "rollback", "web", "--to", "nothing")
        [group] = await admin.json("group", "rollback", "web", "--to", first[:6])
        assert (group["instance_type"], group["rollout"]["message"][:11]) == ("small", "rolled back")
        assert "rolled back" in (await admin.ok("group", "list")).stdout
        # Boots and drains have been measured by now.
        planned = await admin.ok("group", "plan", "web", "--instance-type", "huge")
        assert "duration: about" in planned.stderr
        assert "of VM time above the size" in planned.stderr
        assert "no group wob" in await admin.refused("group", "history", "wob")


async def test_a_rollback_shows_that_the_file_is_not_active(tmp_path: Path) -> None:
    """`config diff` showed the earlier revision as that of the file, and exited with 0."""
    async with World(tmp_path, shard_config()) as world:
        await world.start()
        admin = await shell(world)
        await reached(world, Outcome.COMPLETE, revisions=1)
        made = shard_config()
        made["templates"]["web"]["instance_type"] = "large"
        world.configure(made)
        await world.leader.active_config.refresh()
        await reached(world, Outcome.COMPLETE, revisions=2)
        assert (await admin("config", "diff")).exit_code == 0
        assert (await admin("status")).exit_code == 0
        [group] = await admin.json("group", "list")
        configured = group["rollout"]["revision"]
        await admin.ok("group", "rollback", "web")
        await reached(world, Outcome.COMPLETE, revisions=3)
        await eventually(lambda: len(world.leader.shard.members(KEY)) >= 2)
        await admin.ok("wait", "web")
        shown = await admin("config", "diff", "-o", "json")
        assert shown.exit_code == 1
        rows = {row["setting"]: row for row in json.loads(shown.stdout)}
        kind, revision = rows["instance_type"], rows["revision"]
        assert (kind["file"], kind["api"], kind["active"], kind["actual"]) == ("large", None, "small", "small 2")
        assert (kind["differs"], revision["differs"]) == (["rolled back"], ["rolled back"])
        [group] = await admin.json("group", "list")
        assert (revision["file"], revision["active"]) == (configured, group["rollout"]["revision"])
        status = (await admin("status")).stdout.replace("\n", " ")
        assert f"rolled back: revision {configured} of the config file is not active" in " ".join(status.split())
        await admin.ok("group", "resume-rollout", "web")
        await reached(world, Outcome.COMPLETE, revisions=4)
        await admin.ok("wait", "web")
        assert (await admin("config", "diff")).exit_code == 0


async def test_a_group_of_the_api_says_how_it_is_updated(tmp_path: Path) -> None:
    async with World(tmp_path, config()) as world:
        await world.start()
        admin = await shell(world)
        flags = ["--order", "serial", "--settle", "10s", "--canary", "1", "--pause-after-canary", "5m"]
        more = ["--max-failures", "3", "--on-failure", "rollback", "--max-unavailable", "1"]
        await admin.ok("group", "create", "api", "--template", "web", "--size", "0", *flags, *more)
        desired = world.leader.shard.desired_groups[GroupKey(DEFAULT_TENANT, GroupName("api"))]
        assert (desired.order.value, desired.settle, desired.canary, desired.pause_after_canary) == (
            "serial",
            10.0,
            1,
            300.0,
        )
        assert (desired.max_surge, desired.max_unavailable, desired.max_failures) == (1, 1, 3)
        await admin.ok("group", "update", "api", "--pause-after-canary", "stop", "--max-surge", "2")
        desired = world.leader.shard.desired_groups[GroupKey(DEFAULT_TENANT, GroupName("api"))]
        assert (desired.order.value, desired.stop_after_canary, desired.max_surge, desired.canary) == (
            "serial",
            True,
            2,
            1,
        )
        assert desired.on_failure.value == "rollback"
        assert "settle" in await admin.refused("group", "update", "api", "--order", "parallel")


async def test_over_http(tmp_path: Path) -> None:
    async with World(tmp_path, shard_config()) as world:
        await world.start()
        await reached(world, Outcome.COMPLETE, revisions=1)
        async with served(world) as browser:
            [group] = (await get_json(browser, "/groups", **ALL))["groups"]
            assert group["rollout"]["outcome"] == "complete"
            assert (await post(browser, "/group/rollback", {"group": "web"}, 409, **HERE))["error"]
            changed = shard_config()
            changed["templates"]["web"]["instance_type"] = "large"
            world.configure(changed)
            await world.leader.active_config.refresh()
            await reached(world, Outcome.COMPLETE, revisions=2)
            answer = await post(browser, "/group/rollback", {"group": "web"}, **HERE)
            assert answer["results"][0]["group"] == "web"
            await reached(world, Outcome.COMPLETE, revisions=3)
            [history] = (await get_json(browser, "/group/history", group="web", **HERE))["groups"]
            assert [each["outcome"] for each in history["revisions"]] == ["complete", "rolled-back", "complete"]
            assert (await get_json(browser, "/group/history", 400, **HERE))["error"]
            assert (await post(browser, "/group/resume-rollout", {"group": 1}, 400, **HERE))["error"]
            await post(browser, "/group/resume-rollout", {"group": "web"}, **HERE)
            await reached(world, Outcome.COMPLETE, revisions=4)
