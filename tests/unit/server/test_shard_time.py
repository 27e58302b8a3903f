"""F20 between machines: whoever takes over goes on with the shard's time, not with its machine's."""

import pytest

from nstance.objects import errors
from nstance.objects.lease import Holder, Lease, ReadLease
from nstance.objects.memory import MemoryStore
from nstance.objects.port import Head, Key, Version
from nstance.server.election.shard_time import HEAD_ATTEMPTS, ODD, ShardTime

KEY = Key("leader.json")
NOW = 1_000_000.0  # by the shard and by the store
HOUR = 3600.0


class HandClock:
    """A machine's clocks, and the store's, which does not care how far off the machine's are."""

    def __init__(self, off: float) -> None:
        self.passed = 0.0
        self.off = off
        self._steady = NOW + off

    def monotonic(self) -> float:
        return self.passed

    boot = monotonic

    def wall(self) -> float:
        return NOW + self.off + self.passed

    def steady(self) -> float:
        return self._steady + self.passed

    def anchor(self, steady: float) -> None:
        self._steady = steady - self.passed

    async def sleep(self, seconds: float) -> None:
        self.passed += seconds


class Store(MemoryStore):
    broken = 0

    async def head(self, key: Key) -> Head:
        if self.broken:
            self.broken -= 1
            raise errors.UnavailableError("head: 503")
        return await super().head(key)


class Scene:
    def __init__(self, off: float) -> None:
        self.clock, self.world = HandClock(off), HandClock(0.0)
        self.store = Store(self.world)
        self.time = ShardTime(self.store, KEY, clock=self.clock, anchor=self.clock.anchor)

    def pass_(self, seconds: float) -> None:
        self.clock.passed += seconds
        self.world.passed += seconds

    async def write(self, body: bytes = b"") -> None:
        self.store.tamper(KEY, body)


def found(version: str, at: float) -> ReadLease:
    lease = Lease(
        epoch=1,
        sequence=1,
        op="",
        holder=Holder(server="a", incarnation="a.1"),
        free=False,
        length=15.0,
        promise=2.0,
        at=at,
    )
    return ReadLease(lease, Version(version))


@pytest.mark.parametrize("off", [HOUR, -HOUR, 0.0], ids=["ahead", "behind", "right"])
async def test_a_standby_goes_on_from_the_last_heartbeat(off: float) -> None:
    scene = Scene(off)
    scene.time.read(found("1", NOW - 500.0))  # a lease that was there before it
    scene.pass_(100.0)
    scene.time.last_seen(NOW + 100.0)
    scene.pass_(3.0)
    await scene.time.before_claim()
    assert scene.clock.steady() == NOW + 103.0  # also in the record that is written now
    odd = await scene.time.claimed()
    assert scene.clock.steady() == NOW + 103.0
    assert bool(odd) == bool(off)
    if off:
        assert ("3600 s ahead of" if off > 0 else "3600 s behind") in odd


async def test_a_lease_that_changes_is_as_good_as_a_heartbeat() -> None:
    scene = Scene(HOUR)
    scene.time.read(found("1", NOW - 500.0))
    scene.pass_(10.0)
    scene.time.read(found("2", NOW + 10.0))
    scene.pass_(16.0)
    scene.time.read(found("2", NOW + 10.0))  # no longer
    await scene.time.before_claim()
    await scene.time.claimed()
    assert scene.clock.steady() == NOW + 26.0


async def test_a_lease_that_is_read_late_is_older_than_the_last_heartbeat() -> None:
    scene = Scene(HOUR)
    scene.time.read(found("1", NOW))
    scene.pass_(20.0)
    scene.time.last_seen(NOW + 20.0)
    scene.pass_(2.5)
    scene.time.read(found("2", NOW + 12.0))
    await scene.time.before_claim()
    assert scene.clock.steady() == NOW + 22.5


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("down", [20.0, 24 * HOUR])
async def test_a_server_that_saw_nobody_lead_asks_the_store_for_how_long_nobody_did(off: float, down: float) -> None:
    scene = Scene(off)
    await scene.write(b"1")
    scene.pass_(down)
    scene.time.read(found("1", NOW))
    scene.pass_(16.0)
    await scene.time.before_claim()
    assert scene.clock.steady() == NOW  # not more than is known
    await scene.write(b"2")
    assert await scene.time.claimed()
    assert scene.clock.steady() == NOW + down + 16.0


async def test_when_the_store_does_not_say_ages_go_on_where_they_were() -> None:
    scene = Scene(HOUR)
    await scene.write(b"1")
    scene.time.read(found("1", NOW))
    scene.store.broken = 1
    with pytest.raises(errors.UnavailableError):  # nothing is claimed
        await scene.time.before_claim()
    await scene.time.before_claim()
    scene.store.broken = HEAD_ATTEMPTS
    assert await scene.time.claimed()
    assert scene.clock.steady() == NOW


async def test_a_server_that_led_itself_goes_on_with_its_own_time() -> None:
    scene = Scene(HOUR)
    assert await scene.time.claimed() == ""  # a new shard: its first leader's time is the shard's
    scene.pass_(50.0)
    scene.time.led(Version("9"))
    scene.pass_(5.0)
    scene.time.read(found("9", NOW))  # its own last one
    await scene.time.before_claim()
    assert await scene.time.claimed() == ""
    assert scene.clock.steady() == NOW + HOUR + 55.0


async def test_a_clock_that_is_a_little_off_is_not_worth_a_word() -> None:
    scene = Scene(ODD - 1.0)
    scene.time.last_seen(NOW)
    await scene.time.before_claim()
    assert await scene.time.claimed() == ""
