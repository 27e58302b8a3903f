"""Faults of leadership that a fault list names, each alone, with whole simulated shards."""

import itertools

import pytest

from nstance.config import storage_keys
from nstance.core.election import Timings
from nstance.objects import lease as leases
from nstance.objects.lease import Lease
from nstance.sim.desired_groups import SHARD, DesiredGroup, DesiredGroups
from nstance.sim.server import SimServer
from nstance.sim.setup import Setup
from nstance.sim.world import World, world


def quiet_shard(*, latency: float = 1.0) -> Setup:
    return Setup(
        servers=2,
        operator=False,
        latency=latency,
        desired_groups=DesiredGroups(groups={"web": DesiredGroup(size=3, drain=0.0)}),
    )


def rested(w: World) -> SimServer:
    w.begin()
    while w.auditor.unrest():
        w.advance(1.0)
        assert w.now < 120.0, w.auditor.unrest()
    leader = w.leader()
    assert leader is not None
    return leader


def lease(w: World) -> Lease:
    return leases.decode(w.storage.contents()[storage_keys.lease(SHARD)])


def cut_the_servers_apart(w: World) -> None:
    w.do(w.network.cut.add, frozenset(server.name for server in w.servers))


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_cut_off_from_its_standby_keeps_leading(seed: int) -> None:
    with world(seed, quiet_shard()) as w:
        leader, terms, made = rested(w), w.counts["terms"], w.counts["calls create"]
        cut_the_servers_apart(w)
        led = []
        for _ in range(300):
            w.advance(1.0)
            led.append(w.leader())
        assert {leader} <= set(led) <= {leader, None}
        assert led.count(None) <= 3, "a straggler of the store may freeze it for a moment"
        assert (w.counts["terms"], w.counts["calls create"]) == (terms, made)
        assert not w.violations


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_store_changes_no_leader(seed: int) -> None:
    with world(seed, quiet_shard(latency=10.0)) as w:
        leader, terms = rested(w), w.counts["terms"]
        w.advance(300.0)
        assert (w.leader(), w.counts["terms"]) == (leader, terms)
        assert not w.violations


def test_a_standby_that_cannot_be_reached_is_dropped_although_its_link_hangs_open() -> None:
    """It is no member any more, so that the leader need not renew twice a second for its sake for ever."""
    with world(1, quiet_shard()) as w:
        rested(w)
        assert lease(w).members
        cut_the_servers_apart(w)
        w.advance(40.0)
        assert not lease(w).members
        w.do(w.network.cut.clear)
        w.advance(10.0)
        assert lease(w).members


def test_a_slow_store_gets_a_longer_lease() -> None:
    """Where only storage keeps another server from leading, renewals must not come too late for the lease."""
    with world(1, quiet_shard(latency=40.0)) as w:
        rested(w)
        cut_the_servers_apart(w)
        w.advance(40.0)
        assert not lease(w).members
        assert lease(w).length > Timings().length_standby
        assert not w.violations


@pytest.mark.parametrize("seed", range(2))
def test_servers_that_keep_losing_the_lease_hold_back_longer_each_time(seed: int) -> None:
    """Whoever leads loses storage at once, for five minutes: the terms become rare, and nothing is damaged by them."""
    with world(seed, quiet_shard()) as w:
        rested(w)
        cut, terms = w.storage_faults.cut, [w.counts["terms"]]
        for second in range(300):
            leader = w.leader()
            if leader is not None and not cut.get(leader.name):
                cut[leader.name] = 1
                w.do(w.later, 25.0, cut.pop, leader.name, None)
            w.advance(1.0)
            if second % 100 == 99:
                terms.append(w.counts["terms"])
        begun = [after - before for before, after in itertools.pairwise(terms)]
        assert sum(begun) >= 6, "it flaps"
        assert begun[2] <= 4, "both are held back for up to a minute; otherwise it were seven"
        w.do(w.stop_faults)
        w.settle(300.0)
        assert not w.violations
