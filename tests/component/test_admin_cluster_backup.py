"""`cluster backup` and `cluster restore`: what is in the file, what is refused, and what a restored bucket is."""

import asyncio
import io
import json
import pathlib
import tarfile
import threading
import time
from dataclasses import replace

import pytest

from component.admin_cluster_world import (  # noqa: F401
    EXAMPLE,
    HISTORY,
    TWO,
    Bucket,
    authority,
    bucket,
    instance,
    people,
)
from nstance.admin.cluster import restore as restoring
from nstance.config import storage_keys
from nstance.model.ids import ShardId, TenantId
from nstance.model.instance import State
from nstance.objects import file, lease, slots
from nstance.objects.port import Key
from support.journals import slot_key, snapshot_body, snapshot_key

SHARD = ShardId("dev")
PREFIX = "shard/dev/"
HOLDER = lease.Holder(server="server-1", incarnation="i1")


def write(made: Bucket, key: str, body: bytes) -> None:
    path = made.root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


def leased(made: Bucket, *, epoch: int, tail: int, free: bool = True, sequence: int = 1) -> None:
    body = lease.encode(
        lease.Lease(
            epoch=epoch,
            sequence=sequence,
            op=f"op{sequence}",
            holder=HOLDER,
            free=free,
            length=0.4,
            promise=0.4,
            tail=tail,
        )
    )
    write(made, storage_keys.lease(SHARD), body)


def read_lease(made: Bucket) -> lease.Lease:
    return lease.decode((made.root / storage_keys.lease(SHARD)).read_bytes())


def contents(made: Bucket) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        store = file.FileStore(made.root)
        return {
            key: (await store.get(key, limit=64 << 20)).body
            async for key in store.list("")
            if not key.startswith(".nstance/")
        }

    return asyncio.run(read())


@pytest.fixture
def shard(bucket: Bucket) -> Bucket:  # noqa: F811
    for number, body in HISTORY.items():
        write(bucket, slot_key(SHARD, number), body)
    write(bucket, storage_keys.config(SHARD), EXAMPLE.read_bytes())
    write(bucket, storage_keys.groups(SHARD), b"{}")
    leased(bucket, epoch=3, tail=len(HISTORY))
    bucket.ok("secret", "put", "db-password", input=b"hunter2")
    return bucket


@pytest.fixture
def backup(shard: Bucket, tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "nstance.backup"
    shard.ok("backup", str(made))
    return made


def test_into_an_empty_bucket(shard: Bucket, backup: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = Bucket(tmp_path / "other")
    other.ok("restore", str(backup))
    before, after = contents(shard), contents(other)
    key = storage_keys.lease(SHARD)
    assert {k: v for k, v in after.items() if k != key} == {k: v for k, v in before.items() if k != key}
    assert read_lease(other).free
    assert (read_lease(other).tail, read_lease(other).at) == (max(HISTORY), 0.0)
    assert other.ok("secret", "get", "db-password").stdout_bytes == b"hunter2"
    assert other.ok("journal", "--shard", "dev").stdout == shard.ok("journal", "--shard", "dev").stdout


def test_a_large_shard(shard: Bucket, tmp_path: pathlib.Path) -> None:
    """Thousands of instances make a snapshot of more than 8 MiB, and hundreds of groups such a groups.jsonc."""
    last = max(HISTORY)
    large = replace(instance(TWO, State.PENDING), message="x" * (9 << 20))
    snapshot = slots.Snapshot(number=last, epoch=2, at=1_800_000_000.0, instances={TWO: large})
    write(shard, snapshot_key(SHARD, last), snapshot_body(snapshot, op="op"))
    write(shard, storage_keys.groups(SHARD), b"{}\n" + b"// a comment\n" * 700_000)
    made, other = tmp_path / "large.backup", Bucket(tmp_path / "other")
    shard.ok("backup", str(made))
    for options in ((), ("--overwrite",), ("--overwrite",)):
        other.ok("restore", str(made), *options)
        restored = contents(other)
        write(other, storage_keys.groups(SHARD), bytes((64 << 20) + 1))  # what nobody may read is replaced
        for key in (snapshot_key(SHARD, last), storage_keys.groups(SHARD)):
            assert restored[key] == (shard.root / key).read_bytes()


def test_a_backup_is_not_replaced_unasked(shard: Bucket, backup: pathlib.Path) -> None:
    before = backup.read_bytes()
    refused = shard("backup", str(backup))
    assert refused.exit_code == 2
    assert "exists and may be your only backup; choose another name, or give --force" in refused.stderr
    assert backup.read_bytes() == before
    write(shard, "shard/dev/config.jsonc", (shard.root / "shard/dev/config.jsonc").read_bytes() + b"\n")
    assert shard("backup", str(backup), "--force").exit_code == 0
    assert backup.read_bytes() != before


def test_a_directory_that_is_missing_is_named(shard: Bucket, tmp_path: pathlib.Path) -> None:
    refused = shard("backup", str(tmp_path / "nowhere" / "x"))
    assert refused.exit_code == 2
    assert "there is no directory" in refused.stderr
    assert "nowhere; create it first" in " ".join(refused.stderr.split())


def test_no_secret_is_in_the_file_in_clear(shard: Bucket, backup: pathlib.Path) -> None:
    with tarfile.open(backup) as tar:
        bodies = [file.read() for member in tar if (file := tar.extractfile(member))]
    assert not any(b"hunter2" in body or b"PRIVATE KEY" in body for body in bodies)
    assert backup.stat().st_mode & 0o777 == 0o600


def test_secrets_in_clear_are_left_out(shard: Bucket, tmp_path: pathlib.Path) -> None:
    write(shard, "cluster/secret/plain", b"NSTC\x00in clear")
    made = tmp_path / "b"
    result = shard.ok("backup", str(made), "-o", "json")
    assert json.loads(result.stdout)["left_out"] == ["cluster/secret/plain"]
    assert "not encrypted" in result.stderr
    shard.ok("backup", str(made), "--insecure-dev", "--force")
    with tarfile.open(made) as tar:
        assert "cluster/secret/plain" in tar.getnames()


def test_what_is_newer_goes_and_no_epoch_is_used_twice(shard: Bucket, backup: pathlib.Path) -> None:
    newer = slot_key(SHARD, max(HISTORY) + 1)
    write(shard, newer, b"whatever came later")
    write(shard, storage_keys.groups(SHARD), b'{"default": {}}')
    leased(shard, epoch=9, tail=max(HISTORY) + 1)
    assert "--overwrite" in shard.refused("restore", str(backup))
    assert (shard.root / newer).exists()
    result = shard.ok("restore", str(backup), "--overwrite", "-o", "json")
    assert json.loads(result.stdout)["removed"] == 1
    assert not (shard.root / newer).exists()
    assert (shard.root / storage_keys.groups(SHARD)).read_bytes() == b"{}"
    assert (read_lease(shard).epoch, read_lease(shard).tail) == (9, max(HISTORY))


def test_the_clusters_objects_that_are_there_stay(shard: Bucket, backup: pathlib.Path) -> None:
    """An operator that was revoked since the backup stays revoked, and nobody's CA is replaced."""
    shard.ok("secret", "put", "db-password", input=b"newer")
    result = shard.ok("restore", str(backup), "--overwrite", "-o", "json")
    assert json.loads(result.stdout)["kept"] == ["cluster/secret/db-password"]
    assert shard.ok("secret", "get", "db-password").stdout_bytes == b"newer"


def test_a_leader_that_runs_is_noticed(shard: Bucket, backup: pathlib.Path) -> None:
    leased(shard, epoch=3, tail=max(HISTORY), free=False, sequence=2)
    ended = threading.Event()

    def renew() -> None:
        for sequence in range(3, 1000):
            if ended.wait(0.1):
                return
            leased(shard, epoch=3, tail=max(HISTORY), free=False, sequence=sequence)

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        result = shard("restore", str(backup), "--overwrite")
    finally:
        ended.set()
        renewing.join()
    assert result.exit_code == 1
    assert "server-1 leads shard dev: stop its servers first" in result.stderr
    began = time.monotonic()
    shard.ok("restore", str(backup), "--overwrite")  # nobody renews it any more
    assert time.monotonic() - began >= 0.4


def test_force_does_not_wait_for_a_lease(shard: Bucket, backup: pathlib.Path) -> None:
    leased(shard, epoch=3, tail=max(HISTORY), free=False)
    result = shard.ok("restore", str(backup), "--overwrite", "--force")
    assert "waiting" not in result.stderr


@pytest.mark.parametrize("harm", ["bit", "cut", "empty", "other"])
def test_a_damaged_file_changes_nothing(shard: Bucket, backup: pathlib.Path, harm: str, tmp_path: pathlib.Path) -> None:
    body = bytearray(backup.read_bytes())
    match harm:
        case "bit":
            body[len(body) // 2] ^= 1
        case "cut":
            del body[len(body) // 2 :]
        case "empty":
            body.clear()
    backup.write_bytes(body)
    if harm == "other":
        with tarfile.open(backup, "w:gz") as tar:
            tar.add(EXAMPLE, "config")
    before = contents(shard)
    assert "nstance.backup" in shard.refused("restore", str(backup), "--overwrite")
    assert contents(shard) == before


def test_a_checksum_that_does_not_fit_is_named(shard: Bucket, backup: pathlib.Path, tmp_path: pathlib.Path) -> None:
    changed = tmp_path / "changed"
    with tarfile.open(backup) as old, tarfile.open(changed, "w:gz") as new:
        for member in old:
            found = old.extractfile(member)
            assert found is not None
            body = found.read()
            if member.name == storage_keys.groups(SHARD):
                body = b'{"default": {"evil": {"template": "plain"}}}'
                member.size = len(body)
            new.addfile(member, io.BytesIO(body))
    assert f"{storage_keys.groups(SHARD)} has a wrong checksum" in shard.refused("restore", str(changed), "--overwrite")


def test_half_a_restore_is_not_led_on(shard: Bucket, backup: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease demands more slots than there are: a server that is started too early refuses to lead."""

    async def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(restoring._Restore, "write", fail)
    assert shard("restore", str(backup), "--overwrite").exit_code == 1
    assert read_lease(shard).tail == restoring.UNREACHABLE_SLOT
    monkeypatch.undo()
    shard.ok("restore", str(backup), "--overwrite")
    assert read_lease(shard).tail == max(HISTORY)


def test_a_journal_that_nobody_can_lead_on_is_not_backed_up(shard: Bucket, tmp_path: pathlib.Path) -> None:
    (shard.root / slot_key(SHARD, 2)).unlink()
    result = shard("backup", str(tmp_path / "b"))
    assert result.exit_code == 1
    assert "cannot be backed up" in result.stderr
    assert not (tmp_path / "b").exists()


def test_another_ca_in_the_bucket_stays_and_is_reported(
    shard: Bucket, backup: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    async def theirs() -> None:
        await authority(file.FileStore(tmp_path / "theirs"), create=True)

    asyncio.run(theirs())
    other = Bucket(tmp_path / "theirs")
    key = Key("cluster/ca.crt")
    assert (other.root / key).exists()
    other.ok("restore", str(backup))  # the same cluster's name: its CA stays, with a note
    assert "differs from the backup" in other("restore", str(backup), "--overwrite").stderr


def test_an_operator_of_the_backup_is_there_again(shard: Bucket, tmp_path: pathlib.Path) -> None:
    made, other = tmp_path / "b", Bucket(tmp_path / "other")
    shard.ok("register-operator", "--output-dir", str(tmp_path / "identity"))
    shard.ok("backup", str(made))
    other.ok("restore", str(made))
    assert [each.tenant for each in asyncio.run(people(file.FileStore(other.root)).list())] == [TenantId("default")]
