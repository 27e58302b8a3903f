"""Promises between servers: what each of them may count on, message by message."""

from dataclasses import replace

from nstance.core.election import Timings
from nstance.server import peers
from nstance.server.holder import Holding
from nstance.server.standby import Target
from support.hand_clock import HandClock
from support.standbys import OTHER, Link, beat, new_standby, seated


def test_a_heartbeat_is_answered_with_a_promise_that_is_kept() -> None:
    clock, link = HandClock(), Link()
    standby = new_standby(clock)
    standby.hear(beat(), link, OTHER)
    assert link.sent == [peers.Promise(3, 1)]
    assert standby.promised()
    clock.now += Timings().promise
    assert standby.promised(), "the one who promised waits longer than the one who counts on it"


def test_no_promise_while_a_claim_is_on_its_way() -> None:
    """A promise would let the holder go on while this claim takes its lease."""
    link = Link()
    standby = new_standby(HandClock())
    standby.claiming = True
    standby.hear(beat(), link, OTHER)
    assert link.sent == []
    assert not standby.promised()


async def test_a_promise_to_another_term_carries_nothing() -> None:
    clock = HandClock()
    holding = Holding(*seated(clock), tail=0)
    await holding.claim(Target(5, None, alone=True))
    holding._beats[1] = clock.now
    holding._hear("other.1", peers.Promise(4, 1))
    assert holding._answered == {}
    holding._hear("other.1", peers.Promise(5, 1))
    assert holding._answered == {"other.1": clock.now}


async def test_a_renewal_on_its_way_counts_as_if_it_stood_already() -> None:
    """It may stand in storage with a member that has promised nothing lately: then that one decides."""
    clock = HandClock()
    holding = Holding(*seated(clock), tail=0)
    term = await holding.claim(Target(5, None, alone=True))
    clock.now += Timings().promise + 0.5
    assert term.leading()
    holding._pending = (replace(holding.lease, members=(OTHER,)), clock.now - Timings().promise - 0.1)
    holding._refresh()
    assert not term.leading()
