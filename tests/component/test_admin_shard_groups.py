"""`nstance-admin group`, `config`, `wait` and `status` against a whole server."""

import json
import re
from pathlib import Path

from component.admin_shell import operator_addresses, shell
from component.whole_server import SHARD, World, config, states
from support.eventually import eventually

STATIC = {"default": {"static": {"template": "web", "size": 1}}}
DEAD = "127.0.0.1:1"


async def test_a_group_from_its_creation_to_its_end(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        plan = await admin.json("group", "create", "web", "--template", "web", "--size", "2", "--dry-run")
        assert [(each["action"], each["instance_id"], each["reason"]) for each in plan] == [
            ("create", None, "scale-up")
        ] * 2
        assert await admin.json("group", "list") == []
        table = await admin.ok("group", "create", "web", "--template", "web", "--size", "2", "--dry-run")
        assert re.search(r"create ×2 +scale-up", table.stdout)
        assert table.stderr == "nothing was changed\n"

        [made] = await admin.json("group", "create", "web", "--template", "web", "--size", "2", "--var", "greeting=hi")
        assert (made["group"], made["size"], made["vars"]["greeting"]) == ("web", 2, "hi")
        waited = await admin.ok("wait", "web")
        assert waited.stderr.endswith("stable\n")
        [shown] = await admin.json("group", "list")
        assert (shown["actual_size"], shown["ready_size"], shown["static"], shown["shard"]) == (2, 2, False, SHARD)
        assert "already exists" in await admin.refused("group", "create", "web", "--template", "web")

        # What is not named stays as it is.
        await admin.ok("group", "update", "web", "--var", "name=x", "--drain-timeout", "0")
        await admin.ok("group", "scale", "web", "3")
        one = await admin.json("group", "show", "web")
        assert (one["size"], one["vars"]) == (3, {"greeting": "hi", "name": "x"})
        await admin.ok("group", "update", "web", "--unset-var", "name", "--instance-type", "large", "--max-surge", "2")
        one = await admin.json("group", "show", "web")
        assert (one["size"], one["vars"], one["instance_type"]) == (3, {"greeting": "hi"}, "large")
        await admin.ok("group", "update", "web", "--instance-type", "")
        assert (await admin.json("group", "show", "web"))["instance_type"] == "small"
        assert "greeting=hi" in (await admin.ok("group", "show", "web")).stdout
        await admin.ok("wait")

        gone = await admin.json("group", "delete", "web", "--dry-run")
        assert {each["action"] for each in gone} <= {"drain", "delete"}
        assert len(gone) == 3
        assert "deleted group web" in (await admin.ok("group", "delete", "web")).stderr
        assert await admin.json("group", "list") == []
        await eventually(lambda: "running" not in states(world, "web").values())


async def test_plans_of_what_would_be(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        await world.drainer()
        await admin.ok("group", "create", "web", "--template", "web", "--size", "2")
        await admin.ok("wait")
        quiet = await admin.ok("group", "plan", "web")
        assert (quiet.stdout, quiet.stderr) == ("", "no actions are needed; nothing was changed\n")
        assert [each["action"] for each in await admin.json("group", "plan", "web", "--var", "greeting=x")] == [
            "push-files"
        ] * 2
        assert [each["action"] for each in await admin.json("group", "scale", "web", "0", "--dry-run")] == ["drain"] * 2
        assert len(await admin.json("group", "plan", "new", "--template", "web", "--size", "5")) == 5
        assert "there is no group new" in await admin.refused("group", "plan", "new", "--size", "5")
        assert (await admin.json("group", "show", "web"))["size"] == 2


async def test_pausing_one_and_all(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("group", "create", "web", "--template", "web", "--size", "1")
        await admin.ok("wait")
        rehearsed = await admin.ok("group", "pause", "--all-groups", "--dry-run", "-o", "json")
        assert [each["paused"] for each in json.loads(rehearsed.stdout)] == [True, True]
        assert rehearsed.stderr == "dry run: nothing was changed\n"
        assert [each["paused"] for each in await admin.json("group", "list")] == [False, False]
        assert [each["paused"] for each in await admin.json("group", "pause", "web")] == [True]
        stable = await admin.ok("wait")
        assert stable.stderr.splitlines() == ["web is stable, but: paused", "stable"]
        await admin.ok("group", "scale", "web", "2")
        late = await admin("wait", "web", "--within", "1ms")
        assert late.exit_code == 1
        assert "nstance-admin: not stable after 0.001 s: web 1/2 ready, paused" in late.stderr
        for words in (["plan", "web"], ["scale", "web", "2", "--dry-run"], ["resume", "web", "--dry-run"]):
            plan = await admin.ok("group", *words, "-o", "json")
            assert [(e["action"], e["reason"]) for e in json.loads(plan.stdout)] == [("create", "scale-up")]
            assert ("the group is paused" in plan.stderr) == (words[0] != "resume")
        plan = await admin.ok("group", "resume", "--all-groups", "--dry-run")
        assert plan.stdout.split()[:7] == ["GROUP", "ACTION", "INSTANCE", "REASON", "MESSAGE", "web", "create"]
        assert [each["paused"] for each in await admin.json("group", "list")] == [False, True]
        assert "paused: resume it before" in await admin.refused("group", "delete", "web")
        assert [each["paused"] for each in await admin.json("group", "resume", "--all-groups")] == [False, False]
        await admin.ok("wait")
        for wrong in (["group", "pause"], ["group", "pause", "web", "--all-groups"]):
            assert "either a group or --all-groups" in await admin.refused(*wrong, code=2)


async def test_wait_waits_for_the_instances_of_a_deleted_group(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await world.drainer()
        await admin.ok("group", "create", "web", "--template", "web", "--size", "2")
        await admin.ok("wait")
        await admin.ok("instance", "create", "--group", "web")
        await eventually(lambda: list(states(world, "web").values()) == ["running"] * 3)
        await admin.ok("group", "delete", "web")
        for words in ([], ["web"]):
            late = await admin("wait", *words, "--within", "1ms")
            assert late.exit_code == 1
            assert "web is not configured (deleted, or held), it still has 2 instances" in late.stderr
        await admin.ok("wait", "static")
        operator = await world.operator()
        for id, state in states(world, "web").items():
            if state == "draining":
                await operator.call("AcknowledgeDrained", instance_id=id)
        await admin.ok("wait")  # the one on demand stays


async def test_a_group_that_nobody_knows_is_one_line(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        admin = await shell(world)
        for words in (
            ["show", "statik"],
            ["scale", "statik", "3"],
            ["delete", "statik"],
            ["update", "statik", "--size", "1"],
            ["plan", "statik"],
            ["pause", "statik"],
            ["resume", "statik"],
        ):
            message = await admin.refused("group", *words)
            assert "there is no group statik (did you mean static?)" in message
        assert "there are: static" in await admin.refused("group", "show", "other")
        assert "there is no group other" in await admin.refused("wait", "other")
        assert "there is no group other" in await admin.refused("instance", "create", "--group", "other")
        assert "there is no group other" in await admin.refused("instance", "list", "--group", "other")
        assert "config.template" in await admin.refused("group", "create", "x", "--template", "nope")
        assert "static" in await admin.refused("group", "delete", "static")


async def test_a_dead_shard_hides_nothing_and_decides_the_exit_code(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        both = f"dead={DEAD},{SHARD}={operator_addresses(world)}"
        for words in (
            ["group", "list"],
            ["group", "show", "static"],
            ["group", "scale", "static", "1"],
            ["instance", "list"],
            ["events"],
            ["config", "status"],
            ["config", "refresh"],
            ["status"],
        ):
            result = await admin(*words, "--all-shards", "-o", "json", NSTANCE_ADMIN_SERVERS=both)
            assert result.exit_code == 1
            assert SHARD in result.stdout
            assert json.loads(result.stdout)
            assert re.fullmatch(
                r"nstance-admin: shard dead: no answer: 127\.0\.0\.1:1: connection refused; .*\n", result.stderr
            )
        tree = await admin("status", "--all-shards", NSTANCE_ADMIN_SERVERS=both)
        assert tree.exit_code == 1
        assert "✗ shard dead  does not answer" in tree.stdout
        assert "✓ static 1" in tree.stdout
        late = await admin("wait", "--all-shards", "--within", "1ms", NSTANCE_ADMIN_SERVERS=both)
        assert (late.exit_code, late.stdout) == (1, "")
        assert "not stable after 0.001 s: shard dead: no answer: 127.0.0.1:1" in late.stderr
        two = await admin("group", "list", "--all-shards", NSTANCE_ADMIN_SERVERS=f"dead={DEAD},gone={DEAD}")
        assert (two.exit_code, two.stderr.count("\n")) == (1, 2)


async def test_the_second_address_of_a_shard_is_tried(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        admin = await shell(world)
        servers = f"{SHARD}={DEAD}|{operator_addresses(world)}"
        assert len(await admin.json("group", "list", NSTANCE_ADMIN_SERVERS=servers)) == 1
        other = f"elsewhere={operator_addresses(world)}"
        message = await admin.refused("group", "list", NSTANCE_ADMIN_SERVERS=other, NSTANCE_ADMIN_SHARD="elsewhere")
        assert "expected shard elsewhere, found zone-a" in message


async def test_the_active_config_and_reading_it_again(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC), agents=False) as world:
        await world.start()
        admin = await shell(world)
        [before] = await admin.json("config", "status")
        assert before["leader"] == "a"
        assert before["etag"]
        assert before["last_modified"].endswith("Z")
        assert (await admin.json("config", "refresh"))[0]["updated"] is False
        world.configure(config(groups={"default": {"static": {"template": "web", "size": 4}}}))
        rehearsed = await admin.ok("config", "refresh", "--dry-run", "-o", "json")
        assert "is new" in rehearsed.stderr
        assert [(e["group"], e["action"], e["reason"]) for e in json.loads(rehearsed.stdout)] == [
            ("static", "create", "scale-up")
        ] * 3
        assert (await admin.json("group", "show", "static"))["size"] == 1
        [after] = await admin.json("config", "refresh")
        assert (after["updated"], after["previous_etag"]) == (True, before["etag"])
        assert (await admin.json("group", "show", "static"))["size"] == 4
        assert "no new config" in (await admin.ok("config", "refresh", "--dry-run")).stderr
        world.configure(config(groups={"default": {"static": {"template": "wob", "size": 4}}}))
        assert "would be rejected: " in await admin.refused("config", "refresh", "--dry-run")
        assert (await admin.json("config", "status"))[0]["errors"] == []
        assert "the new config was rejected: " in await admin.refused("config", "refresh")
        [refused] = await admin.json("config", "status")
        assert refused["etag"] == after["etag"]
        assert any("wob" in problem for problem in refused["errors"])
        assert "rejects a newer config" in (await admin.ok("config", "status")).stderr
        assert "newer config rejected" in (await admin.ok("status")).stdout


async def test_status_folds_what_is_healthy_and_opens_what_is_not(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("group", "create", "web", "--template", "web", "--size", "2")
        await admin.ok("wait")
        text = (await admin.ok("status")).stdout
        assert "✓ shard zone-a  leader a" in text
        assert "2/2 groups healthy, 3/3 instances ready" in text
        assert "✓ static 1, web 2" in text
        await admin.ok("group", "pause", "web")
        text = (await admin.ok("status")).stdout
        assert "● shard zone-a" in text
        assert "1/2 groups healthy, 3/3 instances ready" in text
        assert "● web  paused" in text
        assert 'nstance_group_paused{group="web",tenant="default"} 1.0' in world.leader.server.metrics.render().decode()
        await admin.ok("group", "scale", "web", "5")
        text = (await admin.ok("status")).stdout
        assert "● web  2/5 ready, paused" in text
        assert "✓ static 1" in text
        [shard] = (await admin.json("status"))["shards"]
        assert [(group["group"], group["healthy"]) for group in shard["groups"]] == [("static", True), ("web", False)]
        assert shard["healthy"] is False
