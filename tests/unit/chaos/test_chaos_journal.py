"""The audit of chaos runs finds violations: each one is written into a journal or a directory by hand."""

import dataclasses
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos import journal
from chaos.children import Child, Life
from chaos.world import DEAD_AFTER, SHARD, Harm, World

from nstance.model.ids import DEFAULT_TENANT, GroupName, InstanceId, ProviderId
from nstance.model.instance import Cause, Change, Instance, Put, Remove, State
from nstance.objects import slots
from support.journals import slot_body, slot_key

NOW = time.time()
A, B, C = (InstanceId(f"cha-01jw51srryegh9snf9cmeh3k4{letter}") for letter in "qrs")


def made(id: InstanceId, state: State = State.PENDING, **fields: object) -> Instance:
    plain = Instance(id=id, tenant=DEFAULT_TENANT, group=GroupName("group-0"), state=state, created=NOW)
    return dataclasses.replace(plain, **fields)  # type: ignore[arg-type]


def leaving(id: InstanceId, cause: Cause, **fields: object) -> Instance:
    return made(id, State.DELETING, cause=cause, **fields)


class Shard:
    """A shard of one VM, led by a.1 since epoch 1, and its journal."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, 1, random.Random(1))
        self._number = 0
        log = folder / "a.1.log"
        log.write_text(json.dumps({"level": "info", "message": "leadership acquired", "epoch": 1}) + "\n")
        child = self.world.servers["a"] = Child("a", (), folder, {})
        child.lives.append(Life("a.1", None, log, NOW))  # type: ignore[arg-type]

    def slot(self, *changes: Change, at: float = NOW, epoch: int = 1, number: int | None = None) -> None:
        self._number += 1
        number = number or self._number
        entries = [slots.encode_entry(slots.Entry(id=f"e{self._number}", changes=changes))] if changes else []
        path = self.world.bucket / slot_key(SHARD, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(slot_body(number=number, epoch=epoch, op=f"op{self._number}", at=at, entries=entries))

    def vm(self, id: InstanceId, *, at: float = NOW + 1, maker: str = "a.1") -> None:
        home = self.world.vms.root / id
        home.mkdir(parents=True)
        (home / "instance.json").write_text(json.dumps({"env": {"LOGNAME": maker}}))
        self._touch(home / "instance.json", at)
        self.world.vms.look()

    def mark_deleted(self, id: InstanceId, *, at: float) -> None:
        mark = self.world.vms.root / ".ids" / id
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text("deleted\n")
        self._touch(mark, at)

    def _touch(self, path: Path, at: float) -> None:
        os.utime(path, (at, at))

    async def marks(self) -> set[str]:
        replay = journal.Replay(self.world)
        await replay.run()
        return {problem.partition(":")[0] for problem in replay.problems}


def well(shard: Shard) -> None:
    """A VM is made, dies, and is replaced, as it should be."""
    shard.slot()
    shard.slot(Put(made(A)))
    shard.vm(A)
    shard.world.harm[A] = [Harm("killed", NOW + 5)]
    shard.slot(Put(leaving(A, Cause.GONE)), Put(made(B, replaces=None)), at=NOW + 6)
    shard.vm(B, at=NOW + 7)
    shard.mark_deleted(A, at=NOW + 7)
    shard.slot(Put(made(A, State.DELETED, cause=Cause.GONE, ended=NOW + 8)), at=NOW + 8)


def taken_for_gone(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.slot(Put(leaving(A, Cause.GONE)))


def given_up_too_early(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.world.harm[A] = [Harm("stopped", NOW, NOW + 12)]
    shard.slot(Put(leaving(A, Cause.UNHEALTHY)), Put(made(B, State.STARTING, replaces=A)), at=NOW + 20)


def given_up_without_a_replacement(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.world.harm[A] = [Harm("stopped", NOW, NOW + 60)]
    shard.slot(Put(leaving(A, Cause.UNHEALTHY)), at=NOW + DEAD_AFTER + 1)


def given_up_by_a_new_leader(shard: Shard) -> None:
    """It was unresponsive for long, but this leader has listened only for a moment."""
    shard.slot(Put(made(A)))
    shard.world.harm[A] = [Harm("stopped", NOW, NOW + 90)]
    shard.slot(epoch=2, at=NOW + 50)
    shard.slot(Put(made(B, State.STARTING, replaces=A)), at=NOW + 51, epoch=2)
    shard.slot(Put(leaving(A, Cause.UNHEALTHY)), at=NOW + 60, epoch=2)


def replaced_although_well(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.slot(Put(made(B, replaces=A, replaces_for=Cause.UNHEALTHY)), at=NOW + 60)


def left_for_nothing(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.slot(Put(leaving(A, Cause.SCALE_DOWN)))


def one_too_many(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.slot(Put(made(B)))


def replaced_twice(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.slot(Put(made(B, replaces=A)), Put(made(C, replaces=A)))


def id_used_again(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.slot(Put(leaving(A, Cause.SUPERSEDED, replaces=B)))
    shard.slot(Put(made(A, State.DELETED, ended=NOW, cause=Cause.SUPERSEDED)))
    shard.slot(Remove(A))
    shard.slot(Put(made(A)))


def removed_while_it_ran(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.slot(Remove(A))


def two_writers(shard: Shard) -> None:
    shard.slot(epoch=2)
    shard.slot(Put(made(A)), epoch=1)


def a_hole(shard: Shard) -> None:
    shard.slot()
    shard.slot(number=3)


def another_key(shard: Shard) -> None:
    shard.slot(Put(made(A, State.RUNNING, public_key="a2V5", registered=NOW)))
    shard.slot(Put(made(A, State.RUNNING, public_key="b3RoZXI=", registered=NOW)))


def made_without_an_intent(shard: Shard) -> None:
    shard.slot()
    shard.vm(A)


def made_before_its_intent(shard: Shard) -> None:
    shard.slot()
    shard.slot(Put(made(A)), at=NOW + 10)
    shard.vm(A, at=NOW + 2)


def made_by_a_standby(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.vm(A, maker="b.1")


def made_after_its_epoch(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.slot(epoch=2, at=NOW + 10)
    shard.vm(A, at=NOW + 60)


def deleted_without_a_tombstone(shard: Shard) -> None:
    shard.slot(Put(made(A)))
    shard.mark_deleted(A, at=NOW + 1)


def deleted_before_its_tombstone(shard: Shard) -> None:
    well(shard)
    shard.mark_deleted(A, at=NOW + 1)


def flipped(shard: Shard) -> None:
    shard.slot()
    shard.slot(Put(made(A)))
    path = shard.world.bucket / slot_key(SHARD, 2)
    path.write_bytes(path.read_bytes().replace(b"group-0", b"group-1"))


@pytest.mark.parametrize(
    ("tell", "mark"),
    [
        (taken_for_gone, "I10"),
        (given_up_too_early, "I10"),
        (given_up_without_a_replacement, "I10"),
        (given_up_by_a_new_leader, "I10"),
        (replaced_although_well, "I10"),
        (left_for_nothing, "I10"),
        (one_too_many, "I2"),
        (replaced_twice, "I2"),
        (id_used_again, "I2"),
        (removed_while_it_ran, "I6"),
        (two_writers, "I5"),
        (a_hole, "I5"),
        (another_key, "I7"),
        (made_without_an_intent, "I1"),
        (made_before_its_intent, "I1"),
        (made_by_a_standby, "I5"),
        (made_after_its_epoch, "I5"),
        (deleted_without_a_tombstone, "I3"),
        (deleted_before_its_tombstone, "I3"),
        (flipped, "I6"),
    ],
)
async def test_what_is_wrong_is_seen(tell: Callable[[Shard], None], mark: str, tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    tell(shard)
    assert mark in await shard.marks()


def silenced(shard: Shard) -> None:
    """A VM is silent for good, replaced, and goes."""
    shard.slot(Put(made(A)))
    shard.world.harm[A] = [Harm("stopped", NOW + 1)]
    shard.slot(Put(made(B, replaces=A, replaces_for=Cause.UNHEALTHY)), at=NOW + 12)
    shard.slot(Put(made(B, State.STARTING, replaces=A, provider_id=ProviderId("2"))), at=NOW + 13)
    shard.slot(Put(leaving(A, Cause.UNHEALTHY)), at=NOW + 32)


@pytest.mark.parametrize("tell", [well, silenced])
async def test_what_is_right_is_not_accused(tell: Callable[[Shard], None], tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    tell(shard)
    assert await shard.marks() == set()


@pytest.mark.parametrize(
    ("harm", "fences", "at", "seconds"),
    [
        pytest.param([], [], 100, 0, id="nothing was done"),
        pytest.param([], [80], 100, 0, id="only a new leader"),
        pytest.param([Harm("stopped", 60)], [], 100, 40, id="silent until now"),
        pytest.param([Harm("stopped", 60, 90)], [], 100, 40, id="not yet back"),
        pytest.param([Harm("stopped", 20, 50)], [], 100, 0, id="back long ago"),
        pytest.param([Harm("cut", 60, 70), Harm("stopped", 80, 95)], [], 100, 40, id="one after the other"),
        pytest.param([Harm("cut", 10, 20), Harm("stopped", 80, 95)], [], 100, 20, id="well in between"),
        pytest.param([Harm("stopped", 85, 95)], [70], 100, 30, id="before it had found the new leader"),
        pytest.param([Harm("stopped", 85, 95)], [20], 100, 15, id="long after a new leader"),
    ],
)
def test_how_long_an_agent_was_out_of_reach(harm: list[Harm], fences: list[float], at: float, seconds: float) -> None:
    assert journal.unreachable_for(harm, fences, at) == pytest.approx(seconds)
