"""Expiry and checks of whole shards, as short schedules."""

import dataclasses

import pytest

from nstance.model.instance import ENDED
from nstance.sim.audit.quiescence import find_unrest
from nstance.sim.desired_groups import UNHEALTHY_AFTER, DesiredGroup, DesiredGroups, check_name
from nstance.sim.setup import Setup
from nstance.sim.world import World, world


def setup(group: DesiredGroup, **fields: float) -> Setup:
    return Setup(acknowledges=0.0, desired_groups=DesiredGroups(groups={"web": group}, **fields))  # type: ignore[arg-type]


def wait_for_rest(w: World) -> None:
    while find_unrest(w):
        w.advance(1.0)
        assert w.now < 120.0, find_unrest(w)


def check_settles(w: World) -> None:
    w.do(w.stop_faults)
    w.settle(600.0)
    assert not w.violations, w.violations[0]


@pytest.mark.parametrize("order", ["parallel", "serial"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_group_that_expires_at_once_keeps_its_limits(seed: int, order: str) -> None:
    """Three were draining and none was ready."""
    with world(seed, setup(DesiredGroup(size=3, order=order), forced_age=20.0)) as w:
        w.begin()
        wait_for_rest(w)
        first = set(w.auditor.records)
        while not first.isdisjoint(i.id for i in w.auditor.records.values() if i.state not in ENDED):
            w.advance(0.25)
            assert w.now < 120.0
            existing = [i for i in w.auditor.records.values() if i.state not in ENDED]
            assert len(existing) <= 4
            assert sum(i.counts and any(a.is_ready for a in w.agents_of(i.id)) for i in existing) >= 3
        assert w.counts["left forced-expiry"] >= 3
        check_settles(w)


def test_forced_expiry_costs_no_instance_while_replacements_do_not_become_ready() -> None:
    with world(1, setup(DesiredGroup(size=3), forced_age=20.0)) as w:
        w.begin()
        wait_for_rest(w)
        first = set(w.auditor.records)
        w.secrets._values.clear()
        w.advance(120.0)
        assert {i.id for i in w.auditor.records.values() if i.counts} > first  # one replacement after the other tries
        check_settles(w)


def test_instances_keep_the_checks_of_their_revision() -> None:
    group = DesiredGroup(size=3, checks=1.0, canary=1)
    with world(1, setup(group)) as w:
        w.begin()
        wait_for_rest(w)
        groups = {"web": dataclasses.replace(group, generation=1, checks=2.0)}
        w.do(w.configure, DesiredGroups(groups=groups))
        w.advance(40.0)
        w.do(w.kill, w.leader())  # the next one has to read what the old revision is
        w.advance(20.0)
        checks = {}
        for id in (i.id for i in w.auditor.records.values() if i.counts):
            [agent] = w.agents_of(id)
            assert agent.is_ready
            checks[id] = [each.name for each in agent._results()]
        assert sorted(checks.values()) == [[check_name(0)], [check_name(0)], [check_name(1)]]
        check_settles(w)


@pytest.mark.parametrize("too_long", [False, True])
def test_an_instance_is_replaced_when_its_check_fails_for_too_long(too_long: bool) -> None:
    with world(1, setup(DesiredGroup(size=2, checks=1.0, unhealthy_after=UNHEALTHY_AFTER))) as w:
        w.begin()
        wait_for_rest(w)
        agent = w.agents()[0]
        w.do(agent.fail_checks, True)
        w.advance(UNHEALTHY_AFTER - 1.0)
        assert w.counts["calls create"] == 2
        if too_long:
            w.advance(30.0)
        w.do(agent.fail_checks, False)
        w.advance(10.0)
        assert w.counts["left failing checks"] == too_long
        check_settles(w)
