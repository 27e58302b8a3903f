"""Homes on a plain directory, without any process."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.provider_worlds import fresh_id
from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ShardId, TenantId
from nstance.providers import errors, instance_dirs


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


@pytest.fixture
def here(tmp_path: Path) -> instance_dirs.InstanceDirs:
    made = instance_dirs.InstanceDirs(tmp_path / "instances")
    made.prepare()
    return made


def bury(here: instance_dirs.InstanceDirs, id: InstanceId) -> None:
    with here.hold(id) as held:
        here.bury(held)


def test_a_record_is_read_as_it_was_written(here: instance_dirs.InstanceDirs) -> None:
    id = fresh_id()
    assert here.read(id) is None
    here.make(record(id), {"ca.crt": "x"})
    assert here.read(id) == record(id)
    assert here.ids() == [id]
    here.remove(id)
    assert here.read(id) is None


def test_what_a_crash_left_half_made_is_made_anew(here: instance_dirs.InstanceDirs) -> None:
    id = fresh_id()
    (here.root / ".new" / id / "identity").mkdir(parents=True)
    (here.root / ".new" / id / "identity" / "ca.crt").write_text("half")
    assert here.ids() == []
    here.make(record(id), {"ca.crt": "whole"})
    assert (here.root / id / "identity" / "ca.crt").read_text() == "whole"


def test_what_a_crash_left_half_removed_goes(here: instance_dirs.InstanceDirs) -> None:
    id = fresh_id()
    here.make(record(id), {})
    (here.root / id).rename(here.root / ".trash" / id)
    here.sweep()
    assert list((here.root / ".trash").iterdir()) == []


def test_deleted_ids_are_remembered_up_to_a_bound(
    here: instance_dirs.InstanceDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest stay, whatever their kind; those of living instances are not among the spent."""
    monkeypatch.setattr(instance_dirs, "REMEMBERED", 3)
    alive = fresh_id()
    with here.hold(alive):
        here.make(record(alive), {})
    buried = [InstanceId(f"{kind}{fresh_id()[3:]}") for kind in ("zzz", "aaa", "mmm", "bbb", "ccc")]
    for id in buried:
        bury(here, id)
    here.sweep()
    assert [here.deleted(id) for id in buried] == [False, False, True, True, True]
    assert (here.root / ".ids" / alive).exists()


def test_sweeping_comes_by_itself(here: instance_dirs.InstanceDirs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_dirs, "REMEMBERED", 2)
    monkeypatch.setattr(instance_dirs, "SWEEP_EVERY", 5)
    for _ in range(20):
        bury(here, fresh_id())
    assert len(list((here.root / ".ids").iterdir())) <= 2 + 5


def test_a_forgotten_lock_is_not_held_by_two(here: instance_dirs.InstanceDirs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever locked a file that was removed at that moment takes the new one, as everybody after him would."""
    id, real, removed = fresh_id(), fcntl.flock, []
    path = here.root / ".ids" / id

    def slow(lock: int, operation: int) -> None:
        if not removed:
            removed.append(path)
            path.unlink()
        real(lock, operation)

    monkeypatch.setattr(instance_dirs.fcntl, "flock", slow)
    with here.hold(id) as held:
        assert os.fstat(held.lock).st_ino == path.stat().st_ino


def test_the_tail_of_a_log(here: instance_dirs.InstanceDirs) -> None:
    id = fresh_id()
    here.make(record(id), {})
    assert here.tail(id, 10) == b""
    (here.root / id / "agent.log").write_bytes(b"0123456789abc")
    assert here.tail(id, 10) == b"3456789abc"
    assert here.tail(id, 100) == b"0123456789abc"


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
    """F42: never a crash, never an absence."""
    with pytest.raises(instance_dirs.UnreadableError):
        instance_dirs._parse(body, InstanceId("knc-01jw51srryegh9snf9cmeh3k4q"))


@given(FIELDS, JSON)
def test_a_record_with_one_damaged_field_is_whole_or_unreadable(name: str, value: object) -> None:
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
    """B20."""
    with pytest.raises(errors.PermanentError):
        instance_dirs.InstanceDirs(Path("/nowhere")).home(InstanceId(text))
