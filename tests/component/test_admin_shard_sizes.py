"""One visible truth about sizes: whose value counts is shown everywhere, and the file's value can be had back."""

import json
import re
from pathlib import Path

from click.testing import CliRunner, Result

from component.admin_shell import shell
from component.whole_server import SHARD, World, config, states
from nstance.admin import main
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually


def shard_config(size: int = 2, **group: object) -> dict[str, object]:
    return config(
        groups={"default": {"workers": {"template": "web", "size": size, "drain_timeout": "0", **group}}},
    )


def running(world: World) -> int:
    return list(states(world, "workers").values()).count("running")


async def test_a_size_of_the_api_is_shown_until_the_file_has_it_back(tmp_path: Path) -> None:
    async with World(tmp_path, shard_config(2)) as world:
        await world.start()
        admin = await shell(world)
        who = (await admin.json("group", "scale", "workers", "3"))[0]["size_source"]["by"]
        assert who.startswith("opr-")

        # The file asks for 5, and everything says why that has no effect.
        world.configure(shard_config(5))
        dry = await admin.ok("config", "refresh", "--dry-run")
        warning = (
            r"warning: group default/workers: size 5 in the file has no effect: 3 was set through the API "
            rf"\(by {who} at \d{{4}}-.*Z\); to use the file: nstance-admin group update workers --unset-size\n"
        )
        assert re.search(warning, dry.stderr)
        done = await admin.ok("config", "refresh")
        assert re.search(warning, done.stderr)
        assert re.search(warning, (await admin.ok("group", "plan", "workers")).stderr)
        [listed] = await admin.json("group", "list")
        assert (listed["size"], listed["size_source"]["kind"], listed["size_source"]["config_size"]) == (3, "api", 5)
        assert [(each["field"], each["value"], each["file_value"], each["by"]) for each in listed["overrides"]] == [
            ("size", "3", "5", who)
        ]
        shown = rf"api, set by {who} at \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ; the config file has 5"
        assert re.search(f"size from {shown}", (await admin.ok("group", "list")).stdout)
        assert re.search(shown, (await admin.ok("group", "show", "workers")).stdout)
        await admin.ok("wait")
        assert "workers 3 (set by API, config file: 5)" in (await admin.ok("status")).stdout

        # Side by side, and back to the file.
        different = await admin("config", "diff")
        assert different.exit_code == 1
        assert re.search(r"workers +size +5 +3 +3 +3 +overridden", different.stdout)
        plan = await admin.json("group", "update", "workers", "--unset-size", "--dry-run")
        assert [each["action"] for each in plan] == ["create"] * 2
        assert await admin.json("group", "plan", "workers", "--unset-size") == plan
        both = await admin("group", "plan", "workers", "--unset-size", "--size", "1")
        assert "expected either --size or --unset-size" in both.stderr
        [back] = await admin.json("group", "update", "workers", "--unset-size")
        assert (back["size"], back["size_source"], back["overrides"]) == (
            5,
            {"kind": "config", "by": None, "at": None, "config_size": 5},
            [],
        )
        await admin.ok("wait")
        assert running(world) == 5
        assert (await admin("config", "diff")).exit_code == 0
        assert not (await admin.ok("config", "refresh")).stderr
        messages = [each["message"] for each in await admin.json("events", "--group", "workers")]
        assert f"size 2 → 3 (by {who})" in messages
        assert f"size 3 → 5; size returned to the configuration file (by {who})" in messages

        # From now on the file counts again, and the history names it.
        world.configure(shard_config(4))
        await admin.ok("config", "refresh")
        await admin.ok("wait")
        assert running(world) == 4
        messages = [each["message"] for each in await admin.json("events", "--group", "workers")]
        assert "size 5 → 4 (by the configuration file)" in messages


async def test_a_size_is_given_back_to_the_newest_file(tmp_path: Path) -> None:
    """The active one had 2: two healthy instances were deleted, and created again when the file was read."""
    async with World(tmp_path, shard_config(2)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("group", "scale", "workers", "4")
        world.configure(shard_config(3))
        [back] = await admin.json("group", "update", "workers", "--unset-size")
        assert (back["size"], back["size_source"]["config_size"]) == (3, 3)
        world.store.tamper(f"shard/{world.shard}/config.jsonc", b"{")
        await admin.ok("group", "scale", "workers", "4")
        [back] = await admin.json("group", "update", "workers", "--unset-size")
        assert back["size"] == 3  # the last one that was valid


async def test_a_preview_of_unset_reads_the_newest_file_as_the_change_does(tmp_path: Path) -> None:
    """It showed what the file said up to a minute ago."""
    async with World(tmp_path, shard_config(2)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("group", "scale", "workers", "4")
        await admin.ok("wait")
        world.configure(shard_config(5))
        active = world.leader.active_config.configuration
        plan = await admin.json("group", "update", "workers", "--unset-size", "--dry-run")
        assert [each["action"] for each in plan] == ["create"]
        operator = await world.operator()
        answer = await operator.call("PlanGroup", key="workers", config=GroupConfig(), unset=["size"])
        assert [each.action for each in answer.actions] == ["create"]
        assert world.leader.active_config.configuration is active  # nothing was activated
        world.store.tamper(f"shard/{world.shard}/config.jsonc", b"{")
        plan = await admin.json("group", "update", "workers", "--unset-size", "--dry-run")
        assert [each["action"] for each in plan] == ["delete"] * 2  # the last one that was valid
        assert not world.leader.active_config.rejection  # what a preview finds is nobody's news


async def test_types_and_vars_are_compared_and_given_back_too(tmp_path: Path) -> None:
    async with World(tmp_path, shard_config(1, vars={"greeting": "file"})) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok(
            "group", "update", "workers", "--instance-type", "large", "--var", "greeting=api", "--var", "a=b"
        )
        await admin.ok("wait")
        result = await admin("config", "diff", "workers", "-o", "json")
        assert result.exit_code == 1
        rows = {row["setting"]: row for row in json.loads(result.stdout)}
        assert {name: (row["file"], row["api"], row["active"], row["differs"]) for name, row in rows.items()} == {
            "size": (1, None, 1, []),
            "instance_type": ("small", "large", "large", ["overridden"]),
            "vars.a": (None, "b", "b", ["overridden"]),
            "vars.greeting": ("file", "api", "api", ["overridden"]),
        }
        assert (rows["size"]["actual"], rows["instance_type"]["actual"]) == ("1", "large 1")
        await admin.ok(
            "group", "update", "workers", "--unset-instance-type", "--unset-var", "greeting", "--unset-var", "a"
        )
        one = await admin.json("group", "show", "workers")
        assert (one["instance_type"], one["vars"], one["overrides"]) == ("small", {"greeting": "file"}, [])
        refused = await admin("group", "update", "workers", "--size", "1", "--unset-size")
        assert (refused.exit_code, "either --size or --unset-size" in refused.output) == (2, True)


async def test_reality_is_compared_with_what_is_wished(tmp_path: Path) -> None:
    async with World(tmp_path, shard_config(2), agents=False) as world:
        await world.start()
        admin = await shell(world)
        operator = await world.operator()
        await operator.call("UpsertGroup", key="dynamic", config=GroupConfig(template="web", size=1))
        await eventually(lambda: list(states(world, "workers").values()) == ["starting"] * 2)
        result = await admin("config", "diff", "-o", "json")
        assert result.exit_code == 1
        sizes = {row["group"]: row for row in json.loads(result.stdout) if row["setting"] == "size"}
        assert (sizes["workers"]["actual"], sizes["workers"]["differs"]) == ("2 (0 ready)", ["actual"])
        assert (sizes["dynamic"]["file"], sizes["dynamic"]["api"]) == (None, 1)
        assert "overridden" not in sizes["dynamic"]["differs"]  # the file has nothing to say about it


async def test_instances_name_who_asked_for_their_end(tmp_path: Path) -> None:
    async with World(tmp_path, shard_config(1)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        [old] = states(world, "workers")
        await admin.ok("instance", "replace", old)
        await eventually(lambda: states(world, "workers")[old] == "deleted")
        messages = [each["message"] for each in await admin.json("events", "--group", "workers")]
        assert any(re.fullmatch(r"replacement requested by opr-\w+", each) for each in messages)


def cluster(bucket: Path, *words: str, input: bytes | None = None) -> Result:
    environment = {"NSTANCE_ADMIN_STORAGE_PROVIDER": "file", "NSTANCE_ADMIN_STORAGE_BUCKET": str(bucket)}
    return CliRunner().invoke(main.root, ["cluster", *words], env=environment, input=input)


def test_config_put_says_what_has_no_effect(tmp_path: Path) -> None:
    place = tmp_path / "shard" / str(SHARD)
    place.mkdir(parents=True)
    (place / "config.jsonc").write_text(json.dumps(shard_config(2)))
    (place / "groups.jsonc").write_text('{"default": {"workers": {"size": 3}}}')
    new = json.dumps(shard_config(5)).encode()
    result = cluster(tmp_path, "config", "put", "--shard", str(SHARD), "-", input=new)
    assert result.exit_code == 0, result.output
    assert "no group changes" in result.stderr
    assert "groups.default.workers.size (line 1, column" in result.stderr
    assert "warning: " in result.stderr
    assert "size 5 in the file has no effect: 3 was set through the API;" in result.stderr
    shown = cluster(tmp_path, "config", "put", "--shard", str(SHARD), "-", "-o", "json", input=new)
    assert len(json.loads(shown.stdout)["warnings"]) == 1
