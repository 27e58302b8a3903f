"""`nstance-admin audit` over a bucket that a leader wrote, and over what others made of it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nstance.admin import main
from nstance.admin.cluster import audit
from nstance.clock import SystemClock, SystemRng
from nstance.config import storage_keys
from nstance.model import actors
from nstance.model.ids import GroupName, InstanceId, ShardId, TenantId
from nstance.model.instance import Instance, Put, State
from nstance.objects import file, journal, journal_writer, slots
from nstance.objects.port import Key

SHARD = ShardId("a")
ADA = "opr-01jw51srryegh9snf9cmeh3k4q for ada@example.com"
ROBOT = "opr-01jw51srryegh9snf9cmeh3k4r"
WEB = InstanceId("web-01jw51srryegh9snf9cmeh3k4q")


def entry(name: str, message: str = "because", code: str = "scale-up") -> slots.Entry:
    made = Instance(
        id=InstanceId(name), tenant=TenantId("acme"), group=GroupName("web"), state=State.PENDING, created=1.0
    )
    return slots.Entry(id=name, reason=(slots.LoggedReason(code, message, name),), changes=(Put(made),))


ENTRIES = [
    entry(WEB, f"deletion requested by {ADA}", "requested"),
    slots.Entry(id="e2", reason=(slots.LoggedReason("config", f"size 2 → 3 (by {ADA}, {ROBOT})", "", "acme", "api"),)),
    entry("web-3", "replaced by web-01jw51srryegh9snf9cmeh3k4r"),
    slots.Entry(id="e4", reason=(slots.LoggedReason("security", f"operator {ROBOT} revoked by {ADA}", "", "globex"),)),
    *(entry(f"web-{number}") for number in range(4, 9)),
]


class Bucket:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = file.FileStore(root)
        self.journal = self.open_journal(journal.LIMITS)

    def open_journal(self, limits: journal.Limits) -> journal.Journal:
        return journal.Journal(
            self.store,
            journal_prefix=storage_keys.journal_prefix(SHARD),
            snapshot_prefix=storage_keys.snapshot_prefix(SHARD),
            clock=SystemClock(),
            limits=limits,
        )

    async def lead(self, epoch: int, entries: list[slots.Entry], *, snapshot_after: tuple[int, ...] = ()) -> None:
        async def no_guard() -> None:
            return

        state, _ = await self.journal.load()
        writer = journal_writer.Writer(self.journal, state, epoch=epoch, guard=no_guard, rng=SystemRng())
        await writer.fence()
        running = asyncio.create_task(writer.run())
        for each in entries:
            await writer.commit(each)
            if writer.tail in snapshot_after:
                await writer.snapshot()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def path(self, number: int, *, snapshot: bool = False) -> Path:
        key: Key = self.journal.snapshot_key(number) if snapshot else self.journal.slot_key(number)
        return self.root / key

    def edit(self, number: int, change: Callable[[Any], None], *, snapshot: bool = False) -> None:
        """Alters an object and seals it again, as one does who knows the format."""
        path = self.path(number, snapshot=snapshot)
        raw = json.loads(path.read_bytes())
        del raw["sha256"]
        change(raw)
        path.write_bytes(slots._sealed(raw)[0])

    def __call__(self, *words: str) -> Result:
        own = {"NSTANCE_ADMIN_STORAGE_PROVIDER": "file", "NSTANCE_ADMIN_STORAGE_BUCKET": str(self.root)}
        return CliRunner().invoke(main.root, ["audit", *words, "--shard", SHARD], env=own)

    def verify(self, *words: str) -> tuple[list[int], dict[str, Any]]:
        """The slots with problems, and all that was printed."""
        result = self("verify", "-o", "json", *words)
        found: dict[str, Any] = json.loads(result.stdout)
        assert result.exit_code == (1 if found["problems"] else 0), result.output
        return sorted({each["slot"] for each in found["problems"]}), found


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """Two terms: slots 1 to 10, with snapshots at 4 and 8."""
    made = Bucket(tmp_path / "bucket")
    asyncio.run(made.lead(1, ENTRIES[:4], snapshot_after=(4,)))
    asyncio.run(made.lead(2, ENTRIES[4:8], snapshot_after=(8,)))
    return made


def test_what_a_leader_writes_is_a_chain_over_terms_and_snapshots(bucket: Bucket) -> None:
    slots_with_problems, found = bucket.verify()
    assert slots_with_problems == []
    assert (found["first_slot"], found["last_slot"], found["linked_from"], found["snapshots"]) == (1, 10, 1, 2)
    asyncio.run(bucket.lead(3, ENTRIES[8:]))
    assert bucket.verify("--head", found["head"])[0] == []


def _rename(raw: Any) -> None:
    raw["entries"][0]["reason"][0]["message"] = "nothing happened"


@pytest.mark.parametrize("number", range(2, 10))
def test_an_altered_slot_is_found_and_named(bucket: Bucket, number: int) -> None:
    if number == 6:  # a fence, without entries
        bucket.edit(number, lambda raw: raw.update(at=1.0))
    else:
        bucket.edit(number, _rename)
    assert bucket.verify()[0] == [number]


def test_a_slot_that_is_altered_without_sealing_it_again_is_found(bucket: Bucket) -> None:
    path = bucket.path(3)
    path.write_bytes(path.read_bytes().replace(b"size 2", b"size 9"))
    assert bucket.verify()[0] == [3]


@pytest.mark.parametrize("number", range(1, 10))
def test_a_removed_slot_is_found_and_named(bucket: Bucket, number: int) -> None:
    bucket.path(number).unlink()
    assert number in bucket.verify()[0]


def test_the_last_slot_is_missed_by_a_noted_head(bucket: Bucket) -> None:
    head = bucket.verify()[1]["head"]
    bucket.path(10).unlink()
    assert bucket.verify()[0] == []  # nothing follows it
    assert bucket.verify("--head", head)[0] == [10]


def test_a_removed_slot_whose_successors_were_moved_up_is_found(bucket: Bucket) -> None:
    bucket.path(9).write_bytes(bucket.path(10).read_bytes())
    bucket.path(10).unlink()
    assert bucket.verify()[0] == [9]  # it contains slot 10
    bucket.edit(9, lambda raw: raw.update(slot=9))
    assert bucket.verify()[0] == [8]  # it is not what slot 9 follows


def test_two_slots_in_another_order_are_found(bucket: Bucket) -> None:
    first, second = json.loads(bucket.path(2).read_bytes()), json.loads(bucket.path(3).read_bytes())
    bucket.edit(2, lambda raw: raw.update(entries=second["entries"]))
    bucket.edit(3, lambda raw: raw.update(entries=first["entries"]))
    found = bucket.verify()[0]
    assert found[0] == 2
    assert set(found) <= {2, 3, 4}


def test_a_journal_that_was_rewritten_as_a_whole_is_found_by_a_noted_head(bucket: Bucket) -> None:
    head = bucket.verify()[1]["head"]
    for number in (4, 8):
        bucket.path(number, snapshot=True).unlink()
    bucket.edit(9, _rename)
    checksum = json.loads(bucket.path(9).read_bytes())["sha256"]
    bucket.edit(10, lambda raw: raw.update(previous=checksum))
    assert bucket.verify()[0] == []
    assert bucket.verify("--head", head)[0] == [10]


def test_an_altered_snapshot_is_found(bucket: Bucket) -> None:
    bucket.edit(8, lambda raw: raw["instances"].pop(), snapshot=True)
    assert bucket.verify()[0] == [8]
    bucket.edit(4, lambda raw: raw.update(head="0" * 64), snapshot=True)
    assert bucket.verify()[0] == [4, 8]
    bucket.path(8, snapshot=True).write_bytes(b"{}")
    assert bucket.verify()[0] == [4, 8]


def test_the_chain_survives_compaction_and_lost_beginnings_are_found(bucket: Bucket) -> None:
    bucket.journal = bucket.open_journal(journal.Limits(keep_seconds=-1.0))
    head = bucket.verify()[1]["head"]
    asyncio.run(bucket.lead(3, ENTRIES[8:], snapshot_after=(12,)))
    slots_with_problems, found = bucket.verify("--head", head)
    assert (slots_with_problems, found["first_slot"]) == ([], 8)
    bucket.edit(8, lambda raw: raw.update(at=1.0))
    assert bucket.verify()[0] == [8]
    bucket.path(8).unlink()
    assert bucket.verify()[0] == []  # slot 9 follows the head of snapshot 8, which is still there
    bucket.path(9).unlink()
    assert bucket.verify()[0] == [9]


def test_slots_of_older_versions_are_accepted_up_to_the_first_link(bucket: Bucket) -> None:
    for number in range(1, 11):
        bucket.edit(number, lambda raw: raw.pop("previous"))
    for number in (4, 8):
        bucket.edit(number, lambda raw: raw.pop("head"), snapshot=True)
    assert bucket.verify()[0] == []
    asyncio.run(bucket.lead(3, ENTRIES[8:]))
    slots_with_problems, found = bucket.verify()
    assert (slots_with_problems, found["linked_from"]) == ([], 11)
    bucket.edit(10, lambda raw: raw.update(at=1.0))
    assert bucket.verify()[0] == [10]
    bucket.edit(12, lambda raw: raw.pop("previous"))
    assert 12 in bucket.verify()[0]


def test_a_leader_that_starts_from_a_snapshot_of_an_older_version_begins_a_chain(bucket: Bucket) -> None:
    """Without slots after it, the checksum of the last slot is not known."""
    for number in range(9, 11):
        bucket.path(number).unlink()
    bucket.edit(8, lambda raw: raw.pop("head"), snapshot=True)
    asyncio.run(bucket.lead(3, ENTRIES[8:]))
    found = asyncio.run(bucket.journal.read(9))
    assert found is not None
    assert found.previous == ""
    following = asyncio.run(bucket.journal.read(10))
    assert following is not None
    assert following.previous == found.checksum


def listed(bucket: Bucket, *words: str) -> list[int]:
    result = bucket("list", "-o", "json", *words)
    assert result.exit_code == 0, result.output
    return [each["slot"] for each in json.loads(result.stdout)]


def test_entries_are_listed_by_who_what_and_when(bucket: Bucket) -> None:
    assert listed(bucket) == [2, 3, 5]
    assert listed(bucket, "--all") == [2, 3, 4, 5, 7, 8, 9, 10]
    assert listed(bucket, "--person", "ada@example.com") == [2, 3, 5]
    assert listed(bucket, "--person", ROBOT) == [3]
    assert listed(bucket, "--person", "bob") == []
    assert listed(bucket, "--group", "api") == [3]
    assert listed(bucket, "--instance", WEB) == [2]
    assert listed(bucket, "--action", "security") == [5]
    assert listed(bucket, "--tenant", "globex") == [5]
    assert listed(bucket, "--until", "2001-01-01") == []
    assert listed(bucket, "--since", "2001-01-01T00:00:00Z") == [2, 3, 5]
    assert "ada@example.com" in bucket("list").stdout


def test_the_export_has_one_object_per_line(bucket: Bucket) -> None:
    lines = [json.loads(line) for line in bucket("export").stdout.splitlines()]
    assert [each["persons"] for each in lines] == [["ada@example.com"]] * 3
    assert lines[1]["operators"] == [ADA.partition(" ")[0], ROBOT]
    assert (lines[1]["tenant"], lines[1]["group"], lines[1]["action"]) == ("acme", "api", "config")
    bucket.path(3).unlink()
    result = bucket("export")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 2)
    assert "damaged or missing, the first is 3" in result.stderr


@pytest.mark.parametrize("text", ["replaced by web-01jw51srryegh9snf9cmeh3k4r", "grew by 3", "by opr-x", ""])
def test_only_operators_count_as_those_who_asked(text: str) -> None:
    assert actors.named(text) == []


def test_a_setting_that_looks_like_an_actor_is_none(bucket: Bucket) -> None:
    """The value was chosen by an operator, and what the provider says about it quotes it."""
    forged = f"instance type small → x (by {ADA}) (by {ROBOT})"
    assert actors.named(forged) == [(ROBOT, "")]
    refused = slots.LoggedReason("create-failed", f"there is no type x (by {ADA})", WEB)
    slot = slots.Slot(number=1, epoch=1, op="op", at=0.0, entries=(slots.Entry(id="e", reason=(refused,)),))
    assert [entry.by for entry in audit.entries(slot)] == [()]
