"""Whom a standby believes: only the holder of the newest lease that it knows, by its key and its epoch."""

from dataclasses import replace
from typing import Any

import pytest

from nstance.core.election import MARGIN_SECONDS, STRETCH, Claim, Timings
from nstance.objects import lease, memory
from nstance.objects.lease import Holder, Lease
from nstance.objects.port import Stored, Version
from nstance.server.election import peers
from nstance.server.election.standby import Standby
from support.hand_clock import HandClock
from support.standbys import KEY, LED, OTHER, Link, beat, new_standby


def standing_by(clock: HandClock | None = None, store: memory.MemoryStore | None = None) -> Standby:
    """It has got a heartbeat of epoch 3."""
    standby = new_standby(clock or HandClock(), store)
    standby.on_message(beat(3), Link(), LED)
    return standby


@pytest.mark.parametrize(
    ("epoch", "fingerprint"), [pytest.param(2, "key", id="a deposed one"), pytest.param(4, "stolen", id="another key")]
)
def test_only_the_holder_gets_a_promise(epoch: int, fingerprint: str) -> None:
    standby, link = standing_by(), Link(fingerprint)
    standby.reset(epoch=3, hold_off=0.0)  # no promise holds
    standby.on_message(beat(epoch), link, LED)
    assert link.sent == [peers.Refusal(3)]
    assert not standby.has_promised()


@pytest.mark.parametrize(
    ("epoch", "fingerprint"), [pytest.param(2, "key", id="a deposed one"), pytest.param(3, "stolen", id="another key")]
)
async def test_only_the_holder_can_release_the_lease(epoch: int, fingerprint: str) -> None:
    standby = standing_by()
    assert not standby.on_message(peers.Released(epoch, Version("v2")), Link(fingerprint), LED)
    assert standby.has_promised()
    target, wait = await standby.target()
    assert target is None
    assert wait > 0


async def test_a_release_by_the_holder_is_taken_at_once() -> None:
    standby = standing_by()
    assert standby.on_message(peers.Released(3, Version("v2")), Link(), LED)
    assert await standby.target() == (Claim(4, Version("v2"), alone=False), 0.0)


async def test_a_lease_that_vanished_is_an_alarm_and_waited_for_also_by_its_last_holder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody else may have led since, so a server whose own term ended with it has to wait like all others."""
    clock = HandClock()
    store = memory.MemoryStore(clock)
    standby = standing_by(clock, store)
    standby.reset(epoch=3, hold_off=0.0)  # the promise is over
    held = Lease(epoch=3, sequence=1, op="1", holder=OTHER, free=False, length=15.0, promise=2.0)
    await store.create(KEY, lease.encode(held))
    assert (await standby.target())[0] is None
    standby.reset(epoch=4, hold_off=0.0)  # a term of its own, and the lease vanished in it
    await store.delete(KEY)
    await clock.advance(100)
    target, wait = await standby.target()
    assert target is None
    assert wait > 0
    assert [record.levelname for record in caplog.records if "lease object is missing" in record.message] == ["ERROR"]
    await clock.advance(Timings().length_alone)
    assert (await standby.target())[0] is None
    await clock.advance(Timings().length_alone)
    assert (await standby.target())[0] == Claim(5, None, alone=False)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("member", [True, False])
async def test_only_a_member_may_claim_when_its_promise_is_over(member: bool) -> None:
    """A leader counts on the promises of those whom its lease names; to all others it is held for its length."""
    clock = HandClock()
    store = memory.MemoryStore(clock)
    held = Lease(epoch=3, sequence=1, op="1", holder=OTHER, free=False, length=15.0, promise=2.0)
    version = await store.create(KEY, lease.encode(held))
    standby = new_standby(clock, store)
    standby.on_message(replace(beat(3), member=member, version=version), Link(), LED)
    await clock.advance(3.0)
    assert not standby.has_promised()
    target, wait = await standby.target()
    assert target == (Claim(4, version, alone=False) if member else None)
    assert (wait > 0) is not member


WAITS = Timings().crash_wait * STRETCH + MARGIN_SECONDS


async def test_a_member_that_finds_the_leader_dead_claims_as_soon_as_the_leader_reckons_with_it() -> None:
    clock = HandClock()
    standby = standing_by(clock)
    clock.now += 0.1
    standby.on_leader_dead()
    target, wait = await standby.target()
    assert target is None
    assert wait == pytest.approx(WAITS - 0.1)
    assert standby.has_promised()
    clock.now += wait
    assert not standby.has_promised()
    claim, wait = await standby.target()
    assert (claim, wait) == (Claim(4, Version("v1"), alone=False), 0.0)
    assert claim is not None
    assert claim.reason == "the leader is gone: its port refuses connections"


def test_a_leader_that_sends_a_heartbeat_is_not_dead() -> None:
    clock = HandClock()
    standby = standing_by(clock)
    standby.on_leader_dead()
    standby.on_message(beat(3), Link(), LED)
    clock.now += Timings().promise
    assert standby.has_promised()


@pytest.mark.parametrize(
    ("heartbeat", "known", "kept"),
    [
        pytest.param({}, {"crash_wait": 0.0}, Timings().promise, id="a leader of an older version counts on all of it"),
        pytest.param({}, {"crash_wait": 0.0, "promise": 2.0}, 2.0, id="and on what its lease says"),
        pytest.param({"promise": 5.5, "crash_wait": 5.2}, {}, 5.2, id="with a slow store the leader counts on more"),
    ],
)
def test_what_the_leader_counts_on_is_kept(heartbeat: dict[str, float], known: dict[str, float], kept: float) -> None:
    clock = HandClock()
    standby = new_standby(clock)
    standby.on_message(replace(beat(3), **heartbeat), Link(), replace(LED, **known))
    standby.on_leader_dead()
    clock.now += kept
    assert standby.has_promised()
    clock.now += kept * (STRETCH - 1) + MARGIN_SECONDS
    assert not standby.has_promised()


def test_a_shorter_promise_does_not_take_back_a_longer_one() -> None:
    """The answer to the shorter one may not have reached the leader yet."""
    clock = HandClock()
    standby = new_standby(clock)
    standby.on_message(replace(beat(3), promise=5.5, crash_wait=5.2), Link(), LED)
    standby.on_message(beat(3), Link(), LED)
    standby.on_leader_dead()
    clock.now += 5.2
    assert standby.has_promised()


ME = Holder(server="me", incarnation="me.1")


@pytest.mark.parametrize(
    ("found", "claims"),
    [
        pytest.param({"sequence": 2}, True, id="the renewal that the last heartbeat announced"),
        pytest.param({"sequence": 3}, False, id="a later one: the leader was not dead"),
        pytest.param({"sequence": 2, "members": ()}, False, id="it does not name us: the leader does not count on us"),
        pytest.param({"sequence": 1, "epoch": 4}, False, id="somebody else's term"),
        pytest.param({"sequence": 2, "holder": replace(OTHER, incarnation="other.2")}, False, id="another incarnation"),
        pytest.param({"sequence": 2, "free": True}, False, id="released: to be read again"),
    ],
)
def test_what_may_be_claimed_after_a_renewal_was_faster(found: dict[str, Any], claims: bool) -> None:
    standby = new_standby(HandClock())
    standby.on_message(replace(beat(3), sequence=2), Link(), LED)
    there = Stored(lease.encode(replace(replace(LED, members=(ME,)), **found)), Version("v2"))
    assert standby.on_overtaken(there) == (Claim(4, Version("v2"), alone=False) if claims else None)
    assert standby.on_overtaken(there) is None, "once"


async def test_a_server_that_holds_off_knows_the_leader_and_claims_nothing() -> None:
    """It lost several short terms. If it did not even stand by, a leader that dies meanwhile would cost the whole lease."""
    clock = HandClock()
    store = memory.MemoryStore(clock)
    await store.create(KEY, lease.encode(LED))
    standby = new_standby(clock, store)
    standby.reset(epoch=2, hold_off=clock.monotonic() + 10.0)
    assert await standby.target() == (None, Timings().poll)
    assert standby.leader_lease == LED
    await clock.advance(9.0)
    assert await standby.target() == (None, Timings().poll)
