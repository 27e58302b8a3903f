"""`--dry-run` of the cluster commands: the same answers and refusals, and not one byte is changed."""

import asyncio
import json
import pathlib

import pytest

from component.admin_cluster_world import KEY, OTHER_KEY, Bucket, authority
from nstance.admin.cluster.rehearsal import Rehearsal
from nstance.clock import SystemClock
from nstance.objects import errors, memory
from nstance.objects.port import Key, ObjectStore

ME, OTHER = "opr-01jw51srryegh9snf9cmeh3k4q", "opr-01jw51srryegh9snf9cmeh3k4r"


@pytest.fixture
def bucket(tmp_path: pathlib.Path) -> Bucket:
    made = Bucket(tmp_path / "bucket")
    asyncio.run(authority(made.store, create=True))
    made.ok("secret", "put", "present", input=b"value")
    made.ok("register-operator", "--operator-id", ME, "--output-dir", str(tmp_path / "identity"))
    return made


def everything(root: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["secret", "put", "new"], "would store secret new"),
        (["secret", "put", "present"], "would store secret present"),
        (["secret", "rm", "present"], "would remove secret present"),
        (["ca", "rotate"], "next"),
        (["nonce-key", "rotate"], "next"),
        (["rekey"], "sealed with the current key already"),
        (["register-operator", "--output-dir", "{dir}/another"], "another/tls.crt"),
        (["register-operator", "--operator-id", OTHER, "--output-dir", "{dir}/another"], OTHER),
        (["revoke-operator", "--operator-id", ME], f"would revoke {ME}"),
        (["revoke-operator", "--operator-id", ME, "--servers", "a=127.0.0.1:1"], "at once in a"),
    ],
)
def test_nothing_is_changed_and_then_it_is_done(bucket: Bucket, words: list[str], said: str) -> None:
    words = [word.format(dir=bucket.root.parent) for word in words]
    before = everything(bucket.root.parent)
    tried = bucket.ok(*words, "--dry-run", input=b"value")
    assert said in tried.output
    assert tried.stderr.endswith("dry run: nothing was changed\n")
    assert everything(bucket.root.parent) == before
    assert not (bucket.root.parent / "another").exists()
    if "--servers" not in words and words != ["rekey"]:
        assert "dry run" not in bucket.ok(*words, input=b"value").stderr
        assert everything(bucket.root.parent) != before


@pytest.mark.parametrize(
    ("words", "input"),
    [
        (["secret", "put", "new"], b""),
        (["secret", "put", "new"], b"x" * 300_000),
        (["secret", "put", "registration-nonce.key"], b"x"),
        (["secret", "rm", "absent"], None),
        (["register-operator", "--output-dir", "{dir}/identity"], None),
        (["register-operator", "--operator-id", ME, "--output-dir", "{dir}/another"], None),
        (["register-operator", "--tenant", "nobody", "--output-dir", "{dir}/another"], None),
        (["revoke-operator", "--operator-id", OTHER], None),
    ],
)
def test_what_would_be_refused_is_refused(bucket: Bucket, words: list[str], input: bytes | None) -> None:
    words = [word.format(dir=bucket.root.parent) for word in words]
    before = everything(bucket.root.parent)
    tried = bucket.refused(*words, "--dry-run", input=input)
    assert everything(bucket.root.parent) == before
    assert bucket.refused(*words, input=input) == tried


def test_keys_that_are_made_for_show_are_not_shown(bucket: Bucket) -> None:
    new, now = json.loads(bucket.ok("ca", "rotate", "--dry-run", "-o", "json").stdout)
    assert (new["use"], new["sha256"], new["serial"]) == ("next", None, None)
    assert now["sha256"]
    new, now = json.loads(bucket.ok("nonce-key", "rotate", "--dry-run", "-o", "json").stdout)
    assert (new["kid"], bool(now["kid"])) == (None, True)
    made = json.loads(bucket.ok("register-operator", "--output-dir", "new", "--dry-run", "-o", "json").stdout)
    assert (made["operator"], made["serial"]) == (None, None)


def test_a_rekey_can_be_tried_first(bucket: Bucket) -> None:
    keys = {"NSTANCE_ENCRYPTION_KEY": OTHER_KEY, "OLD": KEY}
    words = ("rekey", "--old-key", "env:OLD", "-o", "json")
    tried = json.loads(bucket.ok(*words, "--dry-run", **keys).stdout)
    assert len(tried) == 3
    assert json.loads(bucket.ok(*words, **keys).stdout) == tried
    assert json.loads(bucket.ok(*words, "--dry-run", **keys).stdout) == []


def test_secrets_in_another_store_stay_as_they_are(bucket: Bucket, tmp_path: pathlib.Path) -> None:
    where = ("--secrets-provider", "file", "--secrets-prefix", str(tmp_path / "secrets"))
    bucket.ok("secret", "put", "one", *where, input=b"1")
    before = everything(tmp_path)
    bucket.ok("secret", "put", "one", "--dry-run", *where, input=b"2")
    bucket.ok("secret", "rm", "one", "--dry-run", *where)
    bucket.refused("secret", "put", "one", "--dry-run", *where, input=b"x" * 300_000)
    assert everything(tmp_path) == before


async def test_a_rehearsal_is_a_store_of_its_own() -> None:
    real = memory.MemoryStore(SystemClock())
    await real.create(Key("a/1"), b"one")
    await real.create(Key("a/3"), b"three")
    store: ObjectStore = Rehearsal(real)
    first = (await store.get(Key("a/1"))).version
    second = await store.replace(Key("a/1"), b"uno", seen=first)
    with pytest.raises(errors.ConflictError):
        await store.replace(Key("a/1"), b"un", seen=first)
    with pytest.raises(errors.ConflictError):
        await store.create(Key("a/1"), b"un")
    await store.create(Key("a/2"), b"two")
    await store.delete(Key("a/3"))
    assert (await store.get(Key("a/1"))).version == second
    assert (await store.head(Key("a/1"))).version == second
    assert (await store.head(Key("a/2"))).size == 3
    assert [key async for key in store.list("a/")] == ["a/1", "a/2"]
    assert [key async for key in store.list("a/", after="a/1")] == ["a/2"]
    for call in (store.get, store.head):
        with pytest.raises(errors.NotFoundError):
            await call(Key("a/3"))
    with pytest.raises(errors.NotFoundError):
        await store.replace(Key("a/3"), b"", seen=first)
    assert real.contents() == {"a/1": b"one", "a/3": b"three"}
