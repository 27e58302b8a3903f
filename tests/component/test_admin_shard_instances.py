"""`nstance-admin instance` and `events`, and the identity they are asked with, against a whole server."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from component.admin_shell import operator_addresses, shell, write_identity
from component.whole_server import SECONDS, SHARD, World, config, states
from nstance.admin import client as clients
from nstance.clock import SystemClock
from nstance.model.roles import Role
from nstance.objects.file import FileStore
from nstance.objects.port import Key
from nstance.pki import keys
from support.eventually import eventually

STATIC = {"default": {"web": {"template": "web", "size": 2, "drain_timeout": "0"}}}
UNKNOWN = "web-01jw51srryegh9snf9cmeh3k4q"
EVENT = {"shard", "time", "group", "instance_id", "reason", "message"}


async def test_instances_are_made_replaced_and_deleted(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("wait")
        first, second = await admin.json("instance", "list", "--group", "web")
        assert (first["state"], first["group"], first["connected"], first["shard"]) == ("running", "web", True, SHARD)
        table = (await admin.ok("instance", "list")).stdout.splitlines()
        assert table[0].split() == ["INSTANCE", "GROUP", "STATE", "READY", "AGE", "NOTES"]
        assert table[1].split()[:3] == [first["instance_id"], "web", "running"]
        assert max(map(len, table)) <= 80

        plan = await admin.json("instance", "create", "--group", "web", "--dry-run")
        assert [(each["action"], each["reason"]) for each in plan] == [("create", "requested")]
        [made] = await admin.json("instance", "create", "--group", "web", "--instance-type", "large", "--var", "a=b")
        assert (made["on_demand"], made["instance_type"]) == (True, "large")
        await eventually(lambda: states(world, "web").get(made["instance_id"]) == "running")
        assert "on-demand" in (await admin.ok("instance", "list")).stdout

        replaced = await admin.json("instance", "replace", first["instance_id"], "--dry-run")
        assert [(each["action"], each["instance_id"]) for each in replaced] == [
            ("create", None),
            ("drain", first["instance_id"]),
        ]
        assert len(await admin.json("instance", "list")) == 3
        await admin.ok("instance", "replace", first["instance_id"])
        await admin.ok("wait")
        assert states(world, "web")[first["instance_id"]] == "deleted"
        assert (await admin.json("instance", "show", first["instance_id"]))["reason"] == "requested"
        assert "never replaced" in await admin.refused("instance", "replace", made["instance_id"])

        assert [e["action"] for e in await admin.json("instance", "delete", made["instance_id"], "--dry-run")] == [
            "delete"
        ]
        assert states(world, "web")[made["instance_id"]] == "running"
        await admin.ok("instance", "delete", made["instance_id"])
        gone = await admin.json("instance", "delete", second["instance_id"], "--dry-run")
        found = [(each["action"], each["reason"], each["message"].split(" by opr-")[0]) for each in gone]
        assert found == [
            ("create", "replace", f"replacing {second['instance_id']}: requested"),
            ("delete", "requested", "deletion requested"),
        ]
        await admin.ok("instance", "delete", second["instance_id"])
        await admin.ok("wait")
        now = await admin.json("instance", "list")
        assert len(now) == 2
        assert second["instance_id"] not in {each["instance_id"] for each in now}
        assert len(await admin.json("instance", "list", "--deleted")) > 2


async def test_a_drain_ends_when_a_person_says_so(tmp_path: Path) -> None:
    slow = {"default": {"web": {"template": "web", "size": 1, "drain_timeout": "100000h"}}}
    async with World(tmp_path, config(groups=slow)) as world:
        await world.start()
        admin = await shell(world)
        await world.drainer()
        await admin.ok("wait")
        [old] = await admin.json("instance", "list")
        id = old["instance_id"]
        assert "expected a draining instance, found" in await admin.refused("instance", "drained", id)
        await admin.ok("instance", "delete", id)
        await eventually(lambda: states(world, "web")[id] == "draining")
        assert re.search(r"requested, until \d{4}-\d\d-\d\d \d\d:\d\dZ", (await admin.ok("instance", "list")).stdout)
        plan = await admin.json("instance", "drained", id, "--dry-run")
        assert [(each["action"], each["instance_id"], each["reason"]) for each in plan] == [("delete", id, "requested")]
        assert states(world, "web")[id] == "draining"
        await admin.ok("instance", "drained", id)
        await eventually(lambda: states(world, "web")[id] == "deleted")


async def test_instances_of_a_deleted_group_are_listed_while_they_leave(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        await world.drainer()
        await admin.ok("group", "create", "web", "--template", "web", "--size", "1", "--drain-timeout", "1h")
        await admin.ok("wait")
        await admin.ok("group", "delete", "web")
        await eventually(lambda: "draining" in states(world, "web").values())
        [left] = await admin.json("instance", "list", "--group", "web")
        assert left["state"] == "draining"
        assert "there is no group wob" in await admin.refused("instance", "list", "--group", "wob")


async def test_a_change_whose_answer_is_late_may_have_been_done(tmp_path: Path) -> None:
    """Nobody shakes hands within a millisecond."""
    maybe = "the change may have been applied: check before you try again"
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world)
        assert maybe in await admin.refused("config", "refresh", "--timeout", "1ms")
        for words in (["config", "refresh", "--dry-run"], ["group", "list"]):
            assert maybe not in await admin.refused(*words, "--timeout", "1ms")
        nobody = {"NSTANCE_ADMIN_SERVERS": f"{SHARD}=127.0.0.1:1"}
        assert maybe not in await admin.refused("config", "refresh", **nobody)


async def test_instances_that_nobody_knows(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world)
        for verb in ("show", "delete", "replace", "drained"):
            assert "there is no such instance" in await admin.refused("instance", verb, UNKNOWN)
            await admin.refused("instance", verb, "web_1", code=2)
            assert "no instance begins or ends" in await admin.refused("instance", verb, "web-1")


async def test_events_tell_what_happened_and_why(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start()
        admin = await shell(world)
        await admin.ok("group", "create", "other", "--template", "web", "--size", "1")
        await admin.ok("wait")
        found = await admin.json("events", "--group", "web")
        assert all(each.keys() == EVENT and each["group"] == "web" for each in found)
        assert [each["time"] for each in found] == sorted(each["time"] for each in found)
        assert {"scale-up", "created", "registered"} <= {each["reason"] for each in found}
        assert await admin.json("events", "--group", "web", "--limit", "2") == found[-2:]
        assert await admin.json("events", "--limit", "0") == []
        some = found[-1]["instance_id"]
        assert {each["instance_id"] for each in await admin.json("events", "--instance", some)} == {some}
        lines = (await admin.ok("events", "--group", "web")).stdout.splitlines()
        assert len(lines) == len(found)
        assert "registered        web: agent registered (web-" in "".join(lines)


async def test_events_are_followed_through_a_change_of_leaders(tmp_path: Path) -> None:
    """Nothing twice, nothing missed; the gap between is reported."""
    async with World(tmp_path, config(groups=STATIC)) as world:
        await world.start("a")
        await world.start("b", lead=False)
        admin = await shell(world)
        await admin.ok("wait")
        following = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nstance.admin", "events", "--follow", "--limit", "3", "-o", "json"),
            env={**os.environ, **admin.environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert following.stdout is not None
        try:
            seen = [json.loads(await asyncio.wait_for(following.stdout.readline(), SECONDS)) for _ in range(3)]
            await admin.ok("group", "create", "early", "--template", "web", "--size", "0")
            seen.append(json.loads(await asyncio.wait_for(following.stdout.readline(), SECONDS)))
            assert (seen[-1]["group"], seen[-1]["reason"]) == ("early", "config")
            await world.servers["a"].crash()
            await world.servers["b"].until(lambda: world.servers["b"].lead is not None)
            await admin.ok("group", "create", "late", "--template", "web", "--size", "0")
            while seen[-1]["group"] != "late":
                seen.append(json.loads(await asyncio.wait_for(following.stdout.readline(), SECONDS)))
            found = [tuple(each[name] for name in ("group", "instance_id", "reason", "message")) for each in seen]
            assert sorted(set(found)) == sorted(found)  # the next leader has them with other times
        finally:
            following.terminate()
            await asyncio.wait_for(following.communicate(), SECONDS)


# ---- identity


async def test_identities_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world)
        assert "there is no identity in" in await admin.refused("group", "list", "--identity-dir", str(tmp_path / "no"))
        key = (admin.identity / "tls.key").read_bytes()
        (admin.identity / "tls.key").unlink()
        assert "tls.key is missing" in await admin.refused("group", "list")
        (admin.identity / "tls.key").write_text(keys.private_to_pem(keys.generate(world.rng)))
        assert "they do not fit" in await admin.refused("group", "list")
        (admin.identity / "tls.key").write_bytes(key)
        await admin.ok("group", "list")
        (admin.identity / "tls.crt").write_text("nonsense")
        assert "not an operator's certificate" in await admin.refused("group", "list")
        (admin.identity / "tls.crt").write_text(world.ca_pem)
        assert "not an operator's certificate" in await admin.refused("group", "list")


async def test_an_expired_certificate_is_reported_before_a_shard_is_called(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world)
        expires = clients.load(admin.identity, now=0.0).expires
        with pytest.raises(Exception, match=r"tls\.crt expired at .*register-operator"):
            clients.load(admin.identity, now=expires)


async def test_a_certificate_is_renewed_after_two_thirds_of_its_life(tmp_path: Path) -> None:
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world)
        identity = clients.load(admin.identity, now=0.0)
        assert identity.credentials.begins < identity.renew_at < identity.expires
        before = identity.credentials.certificate_pem
        clock = Late(identity.renew_at - 60)
        address = tuple(operator_addresses(world).split("|"))
        client = clients.Client(SHARD, address, identity=identity, timeout=SECONDS, clock=clock)
        try:
            await client.renew_if_due()
            assert (admin.identity / "tls.crt").read_text() == before
            clock.at = identity.renew_at
            await client.renew_if_due()
            assert (admin.identity / "tls.crt").read_text() != before
            assert client.identity.credentials.certificate_pem == (admin.identity / "tls.crt").read_text()
            assert (await client.call("GetConfigStatus")).shard == SHARD
        finally:
            client.close()
        await admin.ok("group", "list")


class Late(SystemClock):
    """The real clock, with a wall of its own."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def wall(self) -> float:
        return self.at


async def test_revoked_at_once_on_the_shards_that_are_named(tmp_path: Path) -> None:
    """The registration is in the servers' storage; the command works on a directory with the same cluster in it."""
    async with World(tmp_path, agents=False) as world:
        await world.start()
        admin = await shell(world, role=Role.ADMIN)
        victim = await world.operator()
        await victim.call("ListGroups")
        bucket = await copied(world, tmp_path / "bucket")
        words = (
            *("cluster", "revoke-operator", "--operator-id", victim.identity.id, "--storage-provider", "file"),
            *("--storage-bucket", str(bucket), "--servers", admin.environment["NSTANCE_ADMIN_SERVERS"]),
        )
        done = await admin.ok(*words)
        assert f"shard {SHARD} rejects it from now on" in done.stderr
        await eventually(lambda: not victim.channel.connected)
        assert (await victim.refused("ListGroups")).message == "this operator is not registered"
        dead = await admin(*words[:-1], "gone=127.0.0.1:1")
        assert dead.exit_code == 1
        assert "nstance-admin: shard gone: no answer: 127.0.0.1:1" in dead.stderr
        stranger = write_identity(await world.operator("acme"), tmp_path / "acme")
        other = await admin(*words, NSTANCE_ADMIN_IDENTITY_DIR=str(stranger))
        assert other.exit_code == 1
        assert "is of tenant acme, expected default" in other.stderr


async def copied(world: World, directory: Path) -> Path:
    store = FileStore(directory)
    for key, body in world.store.contents().items():
        await store.create(Key(key), body)
    await store.close()
    return directory
