"""`nstance-admin cluster journal`: for people, for programs, over damage, and followed."""

import asyncio
import json
import pathlib
import signal

import pytest

from component import admin_cluster_world
from component.admin_cluster_world import EXAMPLE, HISTORY, ONE, TWO, Bucket, slot, started, write_slot
from nstance.objects.port import Key

empty = admin_cluster_world.empty


def test_journal_for_people(empty: Bucket) -> None:
    for number, body in HISTORY.items():
        write_slot(empty, number, body)
    assert empty.ok("journal", "--shard", "a").stdout.splitlines() == [
        "slot 1  2027-01-15T08:00:01Z  epoch 1  a new leader starts",
        "slot 2  2027-01-15T08:00:02Z  epoch 1",
        f"    {ONE}  default/demo  running",
        "slot 3  2027-01-15T08:00:03Z  epoch 2",
        f"  gone: its VM is \\x1b[31mgone  ({ONE})",
        f"    {ONE}  default/demo  running → deleting (gone)",
        f"    {TWO}  default/demo  pending",
        "slot 4  2027-01-15T08:00:04Z  epoch 2",
        f"    {ONE}  deleting → removed",
    ]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ([], [1, 2, 3, 4]),
        (["--limit", "2"], [3, 4]),
        (["--limit", "0"], []),
        (["--from", "2"], [2, 3, 4]),
        (["--from", "2", "--limit", "2"], [2, 3]),
        (["--from", "9"], []),
    ],
)
def test_a_part_of_the_journal_for_programs(empty: Bucket, words: list[str], numbers: list[int]) -> None:
    for number, body in HISTORY.items():
        write_slot(empty, number, body)
    (empty.root / "shard" / "a" / "config.jsonc").write_bytes(EXAMPLE.read_bytes())
    shown = [json.loads(line) for line in empty.ok("journal", "--shard", "a", "-o", "json", *words).stdout.splitlines()]
    assert [each["slot"] for each in shown] == numbers
    for each in shown:
        if each["slot"] == 3:
            assert each["entries"][0]["reasons"][0]["code"] == "gone"
            assert [change["state"] for change in each["entries"][0]["changes"]] == ["deleting", "pending"]


def test_damage_is_named_and_what_lies_behind_it_is_shown(empty: Bucket) -> None:
    bodies = dict(HISTORY)
    bodies[2] = bodies[2].replace(b"running", b"pending")
    del bodies[3]
    bodies[5] = slot(5, epoch=1)
    bodies[5000] = slot(5000, epoch=2)
    for number, body in bodies.items():
        write_slot(empty, number, body)
    result = empty("journal", "--shard", "a", "-o", "json")
    assert result.exit_code == 1
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["slot"], "damaged" in each) for each in shown] == [
        (1, False),
        (2, True),
        (3, True),
        (4, False),
        (5, True),
        (5, False),
        (6, True),
        (5000, False),
    ]
    assert "checksum" in shown[1]["damaged"]
    assert "journal slot 3 is missing" in shown[2]["damaged"]
    assert "epoch 1 after 2" in shown[4]["damaged"]
    assert "slots 6 to 4999 are missing" in shown[6]["damaged"]
    assert result.stderr.endswith("is damaged at slot 2, 3, 5, 6; restore it from a backup\n")
    assert "slot 2  DAMAGED  journal slot 2 has a wrong checksum" in empty("journal", "--shard", "a").stdout


def test_removed_slots_and_unknown_shards(empty: Bucket) -> None:
    for number in (3, 4):
        write_slot(empty, number, HISTORY[number])
    result = empty.ok("journal", "--shard", "a", "--from", "1", "-o", "yaml")
    assert "slots before 3 were compacted" in result.stderr
    assert result.stdout.count("---\n") == 2
    assert "there is no shard b in file store" in (message := empty.refused("journal", "--shard", "b"))
    assert "(there are: a)" in message


async def test_following_goes_on_until_interrupted(tmp_path: pathlib.Path) -> None:
    bucket = Bucket(tmp_path)
    store = bucket.store

    async def write(number: int) -> None:
        await store.create(Key(f"shard/a/journal/{number:020d}.json"), HISTORY[number])

    await write(1)
    words = ("journal", "--shard", "a", "--follow", "-o", "json", "--storage-provider", "file")
    async with started("cluster", *words, "--storage-bucket", str(tmp_path)) as process:
        assert process.stdout is not None
        for number in (1, 2, 3):
            async with asyncio.timeout(30):
                assert json.loads(await process.stdout.readline())["slot"] == number
            if number < 3:
                await write(number + 1)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")
