"""`nstance-admin doctor` against a whole server, and against buckets with and without faults."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from component.admin_cluster_world import EXAMPLE, KEY, OTHER_KEY, Bucket, contents
from component.admin_cluster_world import bucket as bucket  # a fixture
from component.admin_shell import shell
from component.whole_server import World
from nstance.admin import main
from nstance.objects import errors, file
from nstance.objects.port import Key, Version
from support.off_clock import OffClock


def findings(result: Result) -> list[tuple[str, str, str]]:
    return [(each["level"], each["check"], each["message"]) for each in json.loads(result.stdout)]


def levels(found: list[tuple[str, str, str]], check: str) -> set[str]:
    return {level for level, kind, _ in found if kind == check}


async def test_a_healthy_shard_has_no_problem(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        await world.start("b", lead=False)
        admin = await shell(world)
        result = await admin.ok("doctor", "-o", "json")
        found = findings(result)
        assert levels(found, "clock") == {"ok"}
        assert levels(found, "version") == {"ok"}
        assert levels(found, "certificate") == {"ok"}
        assert ("ok", "leader", "a leads in epoch 1") in found
        assert ("ok", "leader", "standby b answers") in found
        assert any("is closed: no leader there" in message for _, check, message in found if check == "port")
        assert result.stderr.startswith("0 problems, 0 warnings, ")
        table = await admin.ok("doctor")
        assert table.stdout == ""
        assert "a leads in epoch 1" in (await admin.ok("doctor", "--all")).stdout


async def test_a_wrong_clock_and_a_missing_standby_are_found(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start(clock=OffClock(40.0))
        admin = await shell(world)
        result = await admin("doctor", "-o", "json")
        assert result.exit_code == 1
        found = findings(result)
        [(level, message)] = [(level, message) for level, check, message in found if check == "clock"]
        assert level == "problem"
        assert message.startswith("its clock is 40.0 s ahead of")
        assert ("warning", "leader", "it has no standby") in found
        assert "1 problems, 1 warnings" in result.stderr


async def test_warnings_count_only_if_strict(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        shown = await admin.ok("doctor")
        assert "it has no standby" in shown.stdout
        assert (await admin("doctor", "--strict")).exit_code == 1


async def test_a_shard_without_a_leader_is_a_problem_and_hides_no_other(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        servers = admin.environment["NSTANCE_ADMIN_SERVERS"] + ",other=127.0.0.1:1"
        result = await admin("doctor", "-o", "json", NSTANCE_ADMIN_SERVERS=servers)
        assert result.exit_code == 1
        rows: list[dict[str, Any]] = json.loads(result.stdout)
        bad = [row for row in rows if row["level"] == "problem"]
        assert {row["subject"] for row in bad} == {"shard other"}
        assert all(row["advice"] for row in bad)
        assert any(row["message"] == "a leads in epoch 1" for row in rows)


async def test_without_an_identity_the_rest_is_checked(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.start()
        admin = await shell(world)
        result = await admin("doctor", "-o", "json", NSTANCE_ADMIN_IDENTITY_DIR=str(tmp_path / "none"))
        assert result.exit_code == 1
        [row] = json.loads(result.stdout)
        assert "register-operator" in row["advice"]


def test_nothing_to_check_is_wrong_usage() -> None:
    result = CliRunner().invoke(main.root, ["doctor"], env={"NSTANCE_ADMIN_SERVERS": ""})
    assert result.exit_code == 2
    assert "give --servers, --storage-bucket or both" in result.stderr


def doctor(bucket: Bucket, *words: str, key: str = KEY) -> Result:
    environment = {
        "NSTANCE_ADMIN_STORAGE_PROVIDER": "file",
        "NSTANCE_ADMIN_STORAGE_BUCKET": str(bucket.root),
        "NSTANCE_ADMIN_SERVERS": "",
        "NSTANCE_ENCRYPTION_KEY": key,
    }
    return CliRunner().invoke(main.root, ["doctor", "-o", "json", *words], env=environment)


def test_a_bucket_in_order(bucket: Bucket) -> None:
    bucket.ok("config", "put", "--shard", "dev", str(EXAMPLE))
    before = contents(bucket)
    result = doctor(bucket)
    assert result.exit_code == 0, result.output
    found = findings(result)
    assert levels(found, "storage") == levels(found, "clock") == levels(found, "certificate") == {"ok"}
    assert ("ok", "storage", "of 16 writers in a race exactly one wins") in found
    assert ("ok", "permission", "it opens cluster/ca.sealed") in found
    assert ("ok", "configuration", "config.jsonc is valid") in found
    assert ("warning", "leader", "no server has ever led it") in found
    assert contents(bucket) == before


def test_read_only_writes_nothing(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it wrote")

    bucket.ok("config", "put", "--shard", "dev", str(EXAMPLE))
    monkeypatch.setattr(file.FileStore, "create", refuse)
    result = doctor(bucket, "--read-only")
    assert result.exit_code == 0, result.output
    assert levels(findings(result), "clock") == set()


def test_a_wrong_key_and_a_broken_configuration_are_both_found(bucket: Bucket) -> None:
    bucket.ok("config", "put", "--shard", "dev", str(EXAMPLE))
    (bucket.root / "shard/dev/config.jsonc").write_text('{"cluster": 1}')
    result = doctor(bucket, key=OTHER_KEY)
    assert result.exit_code == 1
    bad = {(each["check"], each["subject"]): each for each in json.loads(result.stdout) if each["level"] == "problem"}
    assert set(bad) == {("permission", "encryption key"), ("configuration", "shard dev")}
    assert "set the right encryption key" in bad["permission", "encryption key"]["advice"]
    assert KEY not in result.output


def test_a_store_that_several_writers_win_is_a_problem(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    real = file.FileStore.create

    async def forgetful(self: file.FileStore, key: Key, body: bytes) -> Version:
        with contextlib.suppress(errors.ConflictError):
            return await real(self, key, body)
        return (await self.get(key)).version

    bucket.ok("config", "put", "--shard", "dev", str(EXAMPLE))
    monkeypatch.setattr(file.FileStore, "create", forgetful)
    result = doctor(bucket)
    assert result.exit_code == 1
    [row] = [each for each in json.loads(result.stdout) if each["level"] == "problem"]
    assert row["check"] == "storage"
    assert "create-if-absent" in row["message"]
    assert "use a store with conditional writes" in row["advice"]


def test_an_empty_bucket_is_a_problem(bucket: Bucket) -> None:
    result = doctor(bucket)
    assert result.exit_code == 1
    assert ("problem", "configuration", "there is no shard in it") in findings(result)
