"""Two agents with one identity: what proves it, and what does not."""

import pytest

from nstance.model.ids import InstanceId
from nstance.server.liveness.clones import MAX_FORMER_BOOTS, REMEMBERED_SECONDS, Clones, Report

ID = InstanceId("web-01jw51srryegh9snf9cmeh3k4q")

# Each report: boot ID, sequence, when its connection began, when it came. The last one is judged.
RESTARTS = {
    "the first one": [("a", 1, 0, 1)],
    "the same agent goes on": [("a", 1, 0, 1), ("a", 2, 0, 2), ("a", 3, 0, 3)],
    "it reconnects": [("a", 1, 0, 1), ("a", 2, 2, 3)],
    "a report that was sent twice": [("a", 2, 0, 1), ("a", 2, 2, 3)],
    "late and out of order on its own connection": [("a", 2, 0, 1), ("a", 1, 0, 2)],
    "it restarts": [("a", 5, 0, 1), ("b", 1, 2, 3)],
    "it restarts again and again": [("a", 5, 0, 1), ("b", 1, 2, 3), ("c", 1, 4, 5), ("d", 1, 6, 7)],
    "a last word of the old one, late on its old connection": [("a", 5, 0, 1), ("b", 1, 2, 3), ("a", 6, 0, 4)],
    "one that came while the new one connected": [("a", 5, 0, 1), ("b", 1, 2, 4), ("a", 6, 3, 5)],
    "agents that say no boot ID": [("", 5, 0, 1), ("", 1, 2, 3)],
}
CLONES = {
    "the old one comes back": [("a", 5, 0, 1), ("b", 1, 2, 3), ("a", 6, 4, 5)],
    "the new one comes back": [("a", 5, 0, 1), ("b", 1, 2, 3), ("a", 6, 2, 4), ("b", 2, 5, 6)],
    "one of several earlier ones": [("a", 5, 0, 1), ("b", 1, 2, 3), ("c", 1, 4, 5), ("a", 6, 6, 7)],
    "a copy of a running VM counts from where it was": [("a", 5, 0, 1), ("a", 6, 0, 2), ("a", 5, 3, 4)],
}


def play(clones: Clones, reports: list[tuple[str, int, int, int]]) -> list[str]:
    return [
        clones.evidence(ID, Report(boot, sequence, f"10.0.0.{number}", connected, at))
        for number, (boot, sequence, connected, at) in enumerate(reports)
    ]


@pytest.mark.parametrize("reports", RESTARTS.values(), ids=RESTARTS)
def test_an_agent_that_restarts_or_reconnects_is_no_clone(reports: list[tuple[str, int, int, int]]) -> None:
    clones = Clones()
    assert not any(play(clones, reports))
    assert not clones.is_seen(ID, 10)


@pytest.mark.parametrize("reports", CLONES.values(), ids=CLONES)
def test_two_that_live_at_once_are_noticed(reports: list[tuple[str, int, int, int]]) -> None:
    clones = Clones()
    *before, last = play(clones, reports)
    assert not any(before)
    assert last == f"10.0.0.{len(reports) - 2}"  # where the other one reported from
    assert clones.is_seen(ID, 10)
    assert not clones.is_seen(ID, reports[-1][3] + REMEMBERED_SECONDS)


def test_what_is_remembered_has_an_end() -> None:
    clones = Clones()
    play(clones, [(str(number), 1, 2 * number, 2 * number + 1) for number in range(100)])
    assert len(clones._boots[ID].former) == MAX_FORMER_BOOTS
    play(clones, CLONES["the old one comes back"])
    clones.forget(ID)
    assert not clones.is_seen(ID, 6)
    assert not clones._boots
