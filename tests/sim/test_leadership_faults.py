"""Single faults of leadership in whole simulated shards."""

import itertools

import pytest

from nstance.config import storage_keys
from nstance.core.election import Timings
from nstance.objects import lease as leases
from nstance.objects.lease import Lease
from nstance.sim.desired_groups import SHARD, DesiredGroup, DesiredGroups
from nstance.sim.setup import Setup
from nstance.sim.world import World, world
from sim.test_sim_findings import wait_for_rest


def quiet_shard(*, latency: float = 1.0) -> Setup:
    return Setup(
        servers=2,
        operator=False,
        latency=latency,
        desired_groups=DesiredGroups(groups={"web": DesiredGroup(size=3, drain=0.0)}),
    )


def lease(w: World) -> Lease:
    return leases.decode(w.storage.contents()[storage_keys.lease(SHARD)])


def cut_the_servers_apart(w: World) -> None:
    w.do(w.network.cut.add, frozenset(server.name for server in w.servers))


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_cut_off_from_its_standby_keeps_leading(seed: int) -> None:
    with world(seed, quiet_shard()) as w:
        leader, terms, made = wait_for_rest(w), w.counts["terms"], w.counts["calls create"]
        cut_the_servers_apart(w)
        led = []
        for _ in range(300):
            w.advance(1.0)
            led.append(w.leader())
        assert {leader} <= set(led) <= {leader, None}
        assert led.count(None) <= 3, "one slow request may stop it for a moment"
        assert (w.counts["terms"], w.counts["calls create"]) == (terms, made)
        assert not w.violations


@pytest.mark.parametrize("seed", range(4))
def test_slow_storage_changes_no_leader(seed: int) -> None:
    with world(seed, quiet_shard(latency=10.0)) as w:
        leader, terms = wait_for_rest(w), w.counts["terms"]
        w.advance(300.0)
        assert (w.leader(), w.counts["terms"]) == (leader, terms)
        assert not w.violations


def test_a_standby_that_cannot_be_reached_is_dropped_although_its_link_hangs_open() -> None:
    """It stops being a member, so that the leader need not renew twice a second because of it."""
    with world(1, quiet_shard()) as w:
        wait_for_rest(w)
        assert lease(w).members
        cut_the_servers_apart(w)
        w.advance(40.0)
        assert not lease(w).members
        w.do(w.network.cut.clear)
        w.advance(10.0)
        assert lease(w).members


def test_slow_storage_lengthens_the_lease() -> None:
    """Where only the lease keeps another server from leading, renewals must not be too late."""
    with world(1, quiet_shard(latency=40.0)) as w:
        wait_for_rest(w)
        cut_the_servers_apart(w)
        w.advance(40.0)
        assert not lease(w).members
        assert lease(w).length > Timings().length_standby
        assert not w.violations


@pytest.mark.parametrize("seed", range(2))
def test_servers_that_keep_losing_the_lease_wait_longer_each_time(seed: int) -> None:
    """Every leader loses storage at once, for five minutes: terms become rare, and do no damage."""
    with world(seed, quiet_shard()) as w:
        wait_for_rest(w)
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
        assert sum(begun) >= 6, "the leader keeps changing"
        assert begun[2] <= 4, "both wait for up to a minute; otherwise there would be seven"
        w.do(w.stop_faults)
        w.settle(300.0)
        assert not w.violations
