"""A term is asked before each act. The trap is a machine that was suspended: its monotonic clock stood still meanwhile, and
by it the lease still lasts."""

import asyncio
from dataclasses import dataclass

import pytest

from nstance.objects.journal import DeposedError
from nstance.server.election.term import Term

LENGTH = 2.0


@dataclass
class Machine:
    """A clock that is moved by hand."""

    running: float = 100.0
    asleep: float = 0.0
    set_by: float = 0.0

    def monotonic(self) -> float:
        return self.running

    def boot(self) -> float:
        return self.running + self.asleep

    def wall(self) -> float:
        return 1.7e9 + self.running + self.asleep + self.set_by

    def steady(self) -> float:
        return self.wall()

    async def sleep(self, seconds: float) -> None:
        self.running += seconds


class Storage:
    """Whose the lease is, as storage says it."""

    def __init__(self, machine: Machine) -> None:
        self.ours = True
        self.asked = 0
        self.naps: list[float] = []  # the machine sleeps again while it is asked
        self._machine = machine

    async def reread(self) -> bool:
        self.asked += 1
        if self.naps:
            self._machine.asleep += self.naps.pop()
        return self.ours


def leading() -> tuple[Machine, Storage, Term]:
    machine = Machine()
    storage = Storage(machine)
    term = Term(3, machine, reread=storage.reread)
    term.confirm(machine.monotonic() + LENGTH, length=LENGTH)
    return machine, storage, term


async def test_it_may_act_until_the_lease_ends() -> None:
    machine, storage, term = leading()
    machine.running += LENGTH - 0.01
    await term.ready()
    machine.running += 0.01
    assert not term.leading()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(term.ready(), 0.01)
    assert storage.asked == 0


@pytest.mark.parametrize("how", ["asleep", "set_by"])
async def test_after_a_sleep_storage_is_asked_before_anything_is_done(how: str) -> None:
    machine, storage, term = leading()
    setattr(machine, how, LENGTH + 1.0)
    assert term.leading(), "by its monotonic clock nothing has happened"
    await term.ready()
    await term.ready()
    assert storage.asked == 1


async def test_a_lease_that_was_taken_meanwhile_ends_the_term() -> None:
    machine, storage, term = leading()
    machine.asleep, storage.ours = 60.0, False
    with pytest.raises(DeposedError):
        await term.ready()
    assert not term.leading()


async def test_a_second_sleep_while_storage_is_asked_is_noticed_too() -> None:
    machine, storage, term = leading()
    machine.asleep, storage.naps = 60.0, [60.0]
    await term.ready()
    assert storage.asked == 2


async def test_several_short_sleeps_are_as_good_as_a_long_one() -> None:
    machine, storage, term = leading()
    for _ in range(3):
        machine.asleep += LENGTH / 2
        term.confirm(machine.monotonic() + LENGTH, length=LENGTH)  # promises come, but storage confirms nothing
        await term.ready()
    assert storage.asked == 1
