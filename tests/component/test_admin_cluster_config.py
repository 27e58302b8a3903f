"""`nstance-admin cluster config`: what changes is shown, and nothing invalid is written."""

import asyncio
import json
import pathlib
import re

import pytest
from click.testing import CliRunner

from component import admin_cluster_world
from component.admin_cluster_world import CLOCK, EXAMPLE, Bucket, changed
from nstance.admin import main
from nstance.objects import memory
from nstance.objects import open as stores
from nstance.objects.memory import Fate, Verb
from nstance.objects.port import Key

bucket = admin_cluster_world.bucket
empty = admin_cluster_world.empty


def put(bucket: Bucket, body: bytes, *words: str) -> dict[str, object]:
    result = bucket.ok("config", "put", "--shard", "a", "-", "-o", "json", *words, input=body)
    record = json.loads(result.stdout)
    assert isinstance(record, dict)
    return record


def test_config_put_shows_what_changes_and_get_gives_it_back(empty: Bucket) -> None:
    first = put(empty, EXAMPLE.read_bytes(), "--dry-run")
    assert (first["written"], first["first"]) == (False, True)
    assert not (empty.root / "shard").exists()
    first = put(empty, EXAMPLE.read_bytes())
    assert (first["written"], first["first"]) == (True, True)
    assert first["groups"] == [{"group": "default/demo", "was": None, "size": 3, "changes": ["added"]}]
    assert empty.ok("config", "get", "--shard", "a").stdout_bytes == EXAMPLE.read_bytes()
    assert put(empty, EXAMPLE.read_bytes())["written"] is False

    grown = changed(**{'"size": 3': '"size": 5, "instance_type": "big"', '"hello"': '"good day"', '"5s"': '"6s"'})
    second = put(empty, grown)
    wanted = ["resized", "its instances will be replaced", "new files will be pushed"]
    assert second["groups"] == [{"group": "default/demo", "was": 3, "size": 5, "changes": wanted}]
    assert second["blocks"] == ["shard", "defaults"]
    third = put(empty, changed(**{'"demo": { "template"': '"other": { "drain_timeout": "1s", "template"'}))
    assert [(each["group"], each["changes"]) for each in third["groups"]] == [  # type: ignore[attr-defined]
        ("default/demo", ["removed: its instances will be deleted"]),
        ("default/other", ["added"]),
    ]
    fourth = put(empty, changed(**{'"demo": { "template"': '"other": { "drain_timeout": "2s", "template"'}))
    assert [each["changes"] for each in fourth["groups"]] == [["other settings"]]  # type: ignore[attr-defined]
    table = empty.ok("config", "put", "--shard", "a", str(EXAMPLE))
    assert re.search(r"default/demo +3 +added", table.stdout)
    assert "wrote shard/a/config.jsonc" in table.stderr


def test_a_dry_run_makes_no_bucket(tmp_path: pathlib.Path) -> None:
    absent = Bucket(tmp_path / "absent")
    tried = absent.ok("config", "put", "--shard", "a", str(EXAMPLE), "--dry-run")
    assert re.search(r"default/demo +3 +added", tried.stdout)
    assert not absent.root.exists()
    assert "there is no directory" in absent.refused("config", "get", "--shard", "a")
    assert not absent.root.exists()
    put(absent, EXAMPLE.read_bytes())
    assert (absent.root / "shard/a/config.jsonc").exists()


def test_all_faults_of_a_config_are_shown_and_nothing_is_written(empty: Bucket) -> None:
    bad = changed(**{'"size": 3': '"sizes": 3', '"kind": "dem"': '"kind": "demo"', '"5s"': '"5"'})
    result = empty("config", "put", "--shard", "a", "-", input=bad)
    assert result.exit_code == 1
    assert re.search(r"the configuration has \d+ problems:", result.stderr)
    for fault in ("groups.default.demo.sizes", "templates.demo.kind", "shard.health_check_interval", "line "):
        assert fault in result.stderr
    assert not (empty.root / "shard").exists()


def test_configs_of_another_shard_or_cluster_are_refused(bucket: Bucket) -> None:
    other_shard = changed(**{'"infra": {': '"id": "b", "infra": {'})
    said = bucket("config", "put", "--shard", "a", "-", input=other_shard)
    assert said.exit_code == 1
    assert 'expected the shard that this server serves, "a", found "b"' in said.stderr
    words = ("config", "put", "--shard", "a", "-")
    other = changed(**{'"id": "example-cluster"': '"id": "other"'})
    assert "is of cluster other, but the storage belongs to example-cluster" in bucket.refused(*words, input=other)
    said = bucket.refused(*words, "--cluster-id", "other", input=other)
    assert "belongs to cluster example-cluster, but --cluster-id says other" in said
    assert "there is no shard/a/config.jsonc" in bucket.refused("config", "get", "--shard", "a")
    bucket.refused("config", "put", "--shard", "a", "/nowhere/config", code=2)


def test_a_shard_keeps_its_cluster_also_before_there_is_a_ca(empty: Bucket) -> None:
    put(empty, EXAMPLE.read_bytes())
    other = changed(**{'"id": "example-cluster"': '"id": "other"'})
    said = empty.refused("config", "put", "--shard", "a", "-", input=other)
    assert "a shard cannot change its cluster" in said


def test_groups_of_the_api_must_fit_the_new_config(empty: Bucket) -> None:
    put(empty, EXAMPLE.read_bytes())
    groups = empty.root / "shard" / "a" / "groups.jsonc"
    groups.write_text('{"default": {"more": {"template": "demo", "size": 1}, "demo": {"size": 7}}}')
    without = changed(
        **{'"demo": {\n      "kind"': '"renamed": {\n      "kind"', '"template": "demo",': '"template": "renamed",'}
    )
    result = empty("config", "put", "--shard", "a", "-", input=without)
    assert result.exit_code == 1
    assert "do not fit this config" in result.stderr
    # What the API said wins, so a new size in the file changes nothing.
    assert put(empty, changed(**{'"size": 3': '"size": 4'}))["groups"] == []
    groups.write_text("{")
    assert empty("config", "put", "--shard", "a", str(EXAMPLE)).exit_code == 1


def test_an_invalid_config_can_be_replaced(empty: Bucket) -> None:
    path = empty.root / "shard" / "a" / "config.jsonc"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert put(empty, EXAMPLE.read_bytes())["compared"] is False
    assert path.read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize("present", [True, False])
def test_a_config_written_meanwhile_is_not_overwritten(monkeypatch: pytest.MonkeyPatch, present: bool) -> None:
    store, key = memory.MemoryStore(CLOCK), Key("shard/a/config.jsonc")
    theirs = changed(**{'"size": 3': '"size": 9'})

    async def meddle(verb: Verb, _: str) -> Fate:
        if verb is Verb.REPLACE:
            await store.replace(key, theirs, seen=(await store.get(key)).version)
        elif verb is Verb.CREATE:
            await store.create(key, theirs)
        return Fate()

    async def prepare() -> None:
        if present:
            await store.create(key, EXAMPLE.read_bytes())

    asyncio.run(prepare())
    monkeypatch.setattr(stores, "open_store", lambda *_, **__: store.view(meddle))
    mine = changed(**{'"size": 3': '"size": 1'})
    result = CliRunner().invoke(
        main.root, ["cluster", "config", "put", "--shard", "a", "-", "--storage-bucket", "b"], input=mine
    )
    assert result.exit_code == 1
    assert "written by somebody else meanwhile; nothing was changed" in result.stderr
    assert store.contents()[key] == theirs
