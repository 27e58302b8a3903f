"""Whom a standby believes: only the holder of the newest lease that it knows, by its key and its epoch (F19, I5)."""

from dataclasses import replace

import pytest

from nstance.core.election import Timings
from nstance.objects import lease, memory
from nstance.objects.lease import Lease
from nstance.objects.port import Version
from nstance.server import peers
from nstance.server.standby import Standby, Target
from support.hand_clock import HandClock
from support.standbys import KEY, OTHER, Link, beat, new_standby


def standing_by(clock: HandClock | None = None, store: memory.MemoryStore | None = None) -> Standby:
    """It has heard a leader of epoch 3."""
    standby = new_standby(clock or HandClock(), store)
    standby.hear(beat(3), Link(), OTHER)
    return standby


@pytest.mark.parametrize(
    ("epoch", "fingerprint"), [pytest.param(2, "key", id="a deposed one"), pytest.param(4, "stolen", id="another key")]
)
def test_only_the_holder_gets_a_promise(epoch: int, fingerprint: str) -> None:
    standby, link = standing_by(), Link(fingerprint)
    standby.begin(epoch=3, hold_off=0.0)  # no promise is in force
    standby.hear(beat(epoch), link, OTHER)
    assert link.sent == [peers.Refusal(3)]
    assert not standby.promised()


@pytest.mark.parametrize(
    ("epoch", "fingerprint"), [pytest.param(2, "key", id="a deposed one"), pytest.param(3, "stolen", id="another key")]
)
async def test_only_the_holder_can_release_the_lease(epoch: int, fingerprint: str) -> None:
    standby = standing_by()
    assert not standby.hear(peers.Released(epoch, Version("v2")), Link(fingerprint), OTHER)
    assert standby.promised()
    target, wait = await standby.target()
    assert target is None
    assert wait > 0


async def test_a_release_by_the_holder_is_taken_at_once() -> None:
    standby = standing_by()
    assert standby.hear(peers.Released(3, Version("v2")), Link(), OTHER)
    assert await standby.target() == (Target(4, Version("v2"), alone=False), 0.0)


async def test_a_lease_that_vanished_is_an_alarm_and_waited_for_also_by_its_last_holder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F32: somebody else may have led since, so a server whose own term ended with it has to wait like all others."""
    clock = HandClock()
    store = memory.MemoryStore(clock)
    standby = standing_by(clock, store)
    standby.begin(epoch=3, hold_off=0.0)  # the promise is over
    held = Lease(epoch=3, sequence=1, op="1", holder=OTHER, free=False, length=15.0, promise=2.0)
    await store.create(KEY, lease.encode(held))
    assert (await standby.target())[0] is None
    standby.begin(epoch=4, hold_off=0.0)  # a term of its own, and the lease vanished in it
    await store.delete(KEY)
    await clock.advance(100)
    target, wait = await standby.target()
    assert target is None
    assert wait > 0
    assert [record.levelname for record in caplog.records if "lease object is missing" in record.message] == ["ERROR"]
    await clock.advance(Timings().length_alone)
    assert (await standby.target())[0] is None
    await clock.advance(Timings().length_alone)
    assert (await standby.target())[0] == Target(5, None, alone=False)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("member", [True, False])
async def test_only_a_member_may_claim_when_its_promise_is_over(member: bool) -> None:
    """F19: a leader counts on the promises of those whom its lease names; to all others it is held for its length."""
    clock = HandClock()
    store = memory.MemoryStore(clock)
    held = Lease(epoch=3, sequence=1, op="1", holder=OTHER, free=False, length=15.0, promise=2.0)
    version = await store.create(KEY, lease.encode(held))
    standby = new_standby(clock, store)
    standby.hear(replace(beat(3), member=member, version=version), Link(), OTHER)
    await clock.advance(3.0)
    assert not standby.promised()
    target, wait = await standby.target()
    assert target == (Target(4, version, alone=False) if member else None)
    assert (wait > 0) is not member
