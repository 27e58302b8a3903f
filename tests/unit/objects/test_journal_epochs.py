"""Epochs in the journal never decrease: a reader that finds a lower one rejects the journal."""

import pytest

from nstance.objects import journal, slots


def slot(number: int, epoch: int) -> slots.Slot:
    return slots.Slot(number=number, epoch=epoch, op=f"op-{number}", at=0.0, entries=())


def test_a_slot_of_an_older_leader_behind_a_newer_one_is_damage() -> None:
    state = journal.JournalState()
    state.apply(slot(1, 1), 10)
    state.apply(slot(2, 3), 10)
    state.apply(slot(3, 3), 10)
    with pytest.raises(slots.DamagedError, match="epoch 2 after epoch 3"):
        state.apply(slot(4, 2), 10)
    assert (state.tail, state.epoch) == (3, 3)


def test_a_slot_out_of_order_is_damage() -> None:
    state = journal.JournalState()
    with pytest.raises(slots.DamagedError, match="slot 2 follows slot 0"):
        state.apply(slot(2, 1), 10)
