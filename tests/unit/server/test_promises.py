"""Promises between servers: what each of them may count on, message by message."""

import json
from dataclasses import replace

from nstance.core.election import Answer, Claim, Latency, Timings, adapted
from nstance.server.election import peers
from nstance.server.election.lease_holder import HeldLease, _LinkedStandby
from support.hand_clock import HandClock
from support.standbys import LED, OTHER, Link, beat, make_context, new_standby


def test_a_heartbeat_is_answered_with_a_promise_that_is_kept() -> None:
    clock, link = HandClock(), Link()
    standby = new_standby(clock)
    standby.on_message(beat(), link, LED)
    assert link.sent == [peers.Promise(3, 1)]
    assert standby.has_promised()
    clock.now += Timings().promise
    assert standby.has_promised(), "the one who has_promised waits longer than the one who counts on it"


def test_no_promise_while_a_claim_is_on_its_way() -> None:
    """A promise would let the holder go on while this claim takes its lease."""
    link = Link()
    standby = new_standby(HandClock())
    standby.claiming = True
    standby.on_message(beat(), link, LED)
    assert link.sent == []
    assert not standby.has_promised()


async def test_a_promise_to_another_term_carries_nothing() -> None:
    clock = HandClock()
    held = HeldLease(*make_context(clock), tail=0)
    await held.claim(Claim(5, None, alone=True))
    held._beats[1] = Answer(clock.now, 1.0, 0.35)
    held._on_message("other.1", peers.Promise(4, 1))
    assert held._answered == {}
    held._on_message("other.1", peers.Promise(5, 1))
    assert held._answered == {"other.1": Answer(clock.now, 1.0, 0.35)}


async def test_a_renewal_on_its_way_counts_as_if_it_stood_already() -> None:
    """It may stand in storage with a member that has has_promised nothing lately: then that one decides."""
    clock = HandClock()
    held = HeldLease(*make_context(clock), tail=0)
    term = await held.claim(Claim(5, None, alone=True))
    clock.now += Timings().promise + 0.5
    assert term.leading()
    held._pending = (replace(held.lease, members=(OTHER,)), clock.now - Timings().promise - 0.1)
    held._refresh()
    assert not term.leading()


async def test_heartbeats_tell_what_the_leader_counts_on_where_the_store_is_slow() -> None:
    clock = HandClock()
    context, time = make_context(clock)
    slow = Latency((2.0, 2.0, 2.0))
    held = HeldLease(replace(context, latency=lambda: slow), time, tail=0)
    await held.claim(Claim(5, None, alone=True))
    link = Link()
    held._links["other.1"] = _LinkedStandby(OTHER, link)
    held._send_heartbeats()
    wanted = adapted(Timings(), 2.0)
    (heartbeat,) = link.sent
    assert isinstance(heartbeat, peers.Heartbeat)
    assert (heartbeat.promise, heartbeat.crash_wait) == (wanted.promise, wanted.crash_wait)
    assert (held.lease.promise, held.lease.crash_wait) == (wanted.promise, wanted.crash_wait)
    held._on_message("other.1", peers.Promise(5, heartbeat.number))
    assert held._answered["other.1"] == Answer(clock.now, wanted.promise, wanted.crash_wait)


async def test_a_heartbeat_for_a_usual_store_is_one_that_older_servers_understand() -> None:
    clock = HandClock()
    held = HeldLease(*make_context(clock), tail=0)
    await held.claim(Claim(5, None, alone=True))
    link = Link()
    held._links["other.1"] = _LinkedStandby(OTHER, link)
    held._send_heartbeats()
    heartbeat = json.loads(peers.encode(link.sent[0]))
    assert set(heartbeat) <= {"kind", "epoch", "sequence", "version", "tail", "number", "member", "at"}
    assert peers.decode(peers.encode(link.sent[0])) == link.sent[0]


async def test_a_member_that_answers_late_may_not_claim_what_was_written_for_its_sake() -> None:
    """Otherwise a leader beside a standby that does not answer would have no more than its last answer."""
    clock = HandClock()
    held = HeldLease(*make_context(clock), tail=0)
    term = await held.claim(Claim(5, None, alone=True))
    link = Link()
    held._links[OTHER.incarnation] = _LinkedStandby(OTHER, link)
    held._send_heartbeats()
    held._on_message(OTHER.incarnation, peers.Promise(5, 1))
    await held._write(held._compose(5, 2, (OTHER,)))
    assert [beat.member for beat in link.sent if isinstance(beat, peers.Heartbeat)] == [False, False, True]
    clock.now += Timings().crash_wait
    assert not term.leading(), "it may take us for dead"
    await held._write(held._compose(5, 3, (OTHER,)))
    held._send_heartbeats()
    assert not link.sent[-1].member  # type: ignore[union-attr]
    clock.now += Timings().crash_wait
    held._refresh()
    assert term.leading(), "it has to read this version first"
