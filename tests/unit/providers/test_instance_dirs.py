"""Instance directories, without any process."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.provider_worlds import fresh_id
from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ShardId, TenantId
from nstance.providers import errors, instance_dirs, launch


def record(id: InstanceId) -> instance_dirs.Record:
    return instance_dirs.Record(
        id=id,
        cluster=ClusterId("one"),
        shard=ShardId("a"),
        tenant=TenantId("default"),
        group=GroupName("workers"),
        kind=Kind("knc"),
        template="worker",
        created=1.0,
        command=("true",),
        env={"PATH": "/bin"},
    )


def prepared(folder: Path, **limits: int) -> instance_dirs.InstanceDirs:
    made = instance_dirs.InstanceDirs(folder / "instances", **limits)
    made.prepare()
    return made


@pytest.fixture
def dirs(tmp_path: Path) -> instance_dirs.InstanceDirs:
    return prepared(tmp_path)


def delete(dirs: instance_dirs.InstanceDirs, id: InstanceId) -> None:
    with dirs.lock(id) as lock:
        dirs.mark_deleted(lock)


def test_a_record_is_read_as_it_was_written(dirs: instance_dirs.InstanceDirs) -> None:
    id = fresh_id()
    assert dirs.read(id) is None
    dirs.create(record(id), {"ca.crt": "x"})
    assert dirs.read(id) == record(id)
    assert dirs.ids() == [id]
    dirs.remove(id)
    assert dirs.read(id) is None


def test_a_partial_directory_is_created_again(dirs: instance_dirs.InstanceDirs) -> None:
    id = fresh_id()
    (dirs.root / ".new" / id / "identity").mkdir(parents=True)
    (dirs.root / ".new" / id / "identity" / "ca.crt").write_text("half")
    assert dirs.ids() == []
    dirs.create(record(id), {"ca.crt": "whole"})
    assert (dirs.root / id / "identity" / "ca.crt").read_text() == "whole"


def test_an_interrupted_removal_is_finished(dirs: instance_dirs.InstanceDirs) -> None:
    id = fresh_id()
    dirs.create(record(id), {})
    (dirs.root / id).rename(dirs.root / ".trash" / id)
    dirs.sweep()
    assert list((dirs.root / ".trash").iterdir()) == []


def test_deleted_ids_are_remembered_up_to_a_bound(tmp_path: Path) -> None:
    """The newest stay, whatever their kind; those of existing instances stay too."""
    dirs = prepared(tmp_path, max_remembered=3)
    alive = fresh_id()
    with dirs.lock(alive):
        dirs.create(record(alive), {})
    deleted = [InstanceId(f"{kind}{fresh_id()[3:]}") for kind in ("zzz", "aaa", "mmm", "bbb", "ccc")]
    for id in deleted:
        delete(dirs, id)
    dirs.sweep()
    assert [dirs.is_deleted(id) for id in deleted] == [False, False, True, True, True]
    assert (dirs.root / ".ids" / alive).exists()


def test_deletions_sweep_now_and_then(tmp_path: Path) -> None:
    dirs = prepared(tmp_path, max_remembered=2, sweep_every=5)
    for _ in range(20):
        delete(dirs, fresh_id())
    assert len(list((dirs.root / ".ids").iterdir())) <= 2 + 5


def test_a_forgotten_lock_is_not_held_by_two(dirs: instance_dirs.InstanceDirs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on a file that was removed at that moment is taken again on the new file."""
    id, real, removed = fresh_id(), fcntl.flock, []
    path = dirs.root / ".ids" / id

    def slow(lock: int, operation: int) -> None:
        if not removed:
            removed.append(path)
            path.unlink()
        real(lock, operation)

    monkeypatch.setattr(instance_dirs.fcntl, "flock", slow)
    with dirs.lock(id) as lock:
        assert os.fstat(lock.descriptor).st_ino == path.stat().st_ino


def test_the_tail_of_a_log(dirs: instance_dirs.InstanceDirs) -> None:
    id = fresh_id()
    dirs.create(record(id), {})
    assert dirs.tail(id, 10) == b""
    (dirs.root / id / "agent.log").write_bytes(b"0123456789abc")
    assert dirs.tail(id, 10) == b"3456789abc"
    assert dirs.tail(id, 100) == b"0123456789abc"


def test_secrets_stay_out_of_reprs() -> None:
    assert "/bin" not in repr(record(fresh_id()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    ["id", "cluster", "shard", "tenant", "group", "kind", "template", "created", "command", "env", "x"]
)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_other_record_is_unreadable(body: bytes) -> None:
    """Damaged data is never a crash and never an absence."""
    with pytest.raises(instance_dirs.UnreadableError):
        instance_dirs._parse(body, InstanceId("knc-01jw51srryegh9snf9cmeh3k4q"))


@given(FIELDS, JSON)
def test_a_record_with_one_damaged_field_is_valid_or_unreadable(name: str, value: object) -> None:
    id = InstanceId("knc-01jw51srryegh9snf9cmeh3k4q")
    whole = instance_dirs.asdict(record(id))
    try:
        read = instance_dirs._parse(json.dumps({**whole, name: value}).encode(), id)
    except instance_dirs.UnreadableError:
        return
    assert read.id == id
    assert isinstance(getattr(read, name), str | int | float | tuple | dict)


@given(st.text(max_size=40))
def test_only_instance_ids_become_paths(text: str) -> None:
    """A path outside the root cannot be named."""
    with pytest.raises(errors.PermanentError):
        instance_dirs.InstanceDirs(Path("/nowhere")).directory(InstanceId(text))


def test_the_record_of_a_process_is_on_the_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that loses its power would leave an empty one, which nobody can read: the VM could never be deleted."""
    synced: list[tuple[int, bool]] = []

    def note(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, (tmp_path / launch.PROCESS).exists()))

    monkeypatch.setattr(launch.os, "fsync", note)
    launch._record_process(tmp_path)
    assert synced == [((tmp_path / launch.PROCESS).stat().st_ino, False)]
