"""The auditor finds what it must find: each test violates one invariant by hand."""

import dataclasses
import json

from nstance.model.ids import InstanceId
from nstance.model.instance import Put, State
from nstance.objects import slots
from nstance.points import Point
from nstance.providers.port import Scope
from nstance.sim.audit.auditor import JOURNAL, LEASE
from nstance.sim.audit.quiescence import find_unrest
from nstance.sim.desired_groups import CLUSTER, SHARD, DesiredGroup, DesiredGroups
from nstance.sim.faults.nemesis import Nemesis
from nstance.sim.search import exhaustive
from nstance.sim.setup import Setup
from nstance.sim.world import World, world
from support.journals import slot_body

SETUP = Setup(operator=False, desired_groups=DesiredGroups(groups={"web": DesiredGroup(size=2, drain=0.0)}))
OURS = Scope(cluster=CLUSTER, shard=SHARD)


def at_rest(w: World) -> None:
    w.begin()
    w.advance(15.0)
    assert not find_unrest(w)
    assert not w.violations


def member(w: World) -> InstanceId:
    return next(iter(w.auditor.records))


def only(w: World, invariant: str) -> None:
    assert w.violations
    assert all(f": {invariant}: " in v for v in w.violations), w.violations


def write(w: World, *entries: slots.Entry, number: int | None = None, epoch: int | None = None) -> None:
    a = w.auditor
    number = a.tail + 1 if number is None else number
    for entry in entries:
        port = w.servers[0].agent_port or w.servers[1].agent_port
        assert port is not None
        a.decided(entry, port)
    body = slot_body(
        number=number,
        epoch=a.epoch if epoch is None else epoch,
        op="x",
        at=0.0,
        entries=[slots.encode_entry(e) for e in entries],
    )
    w.storage.tamper(f"{JOURNAL}{number:020d}.json", body)


def test_a_delete_without_a_tombstone_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        w.do(w.cloud.delete, OURS, member(w), None)
        only(w, "I3")


def test_a_create_without_an_intent_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        request = dataclasses.replace(w.agents()[0].request, id=InstanceId("sim-01hf7yas6eed9aca1vh0bzv3py"))
        w.do(w.cloud.create, OURS, request)
        only(w, "I1")


def test_a_leaked_vm_is_unrest() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        w.do(Nemesis(w).plant_orphan)
        assert "no record wants it" in find_unrest(w)
        w.advance(60.0)
        assert not find_unrest(w)


def test_an_epoch_that_falls_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        write(w, epoch=0)
        only(w, "I5")


def test_a_lease_that_falls_back_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        raw = json.loads(w.storage.contents()[LEASE])
        w.storage.tamper(LEASE, json.dumps(raw | {"holder": raw["holder"] | {"incarnation": "other"}}).encode())
        only(w, "I5")


def test_a_departure_without_a_cause_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        gone = dataclasses.replace(w.auditor.records[member(w)], state=State.DELETING)
        write(w, slots.Entry(id="9-1", changes=(Put(gone),)))
        only(w, "I10")


def test_one_instance_too_many_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        extra = dataclasses.replace(
            w.auditor.records[member(w)],
            id=InstanceId("sim-01hf7yas6eed9aca1vh0bzv3py"),
            state=State.PENDING,
            registered=None,
            public_key="",
            provider_id=None,
        )
        write(w, slots.Entry(id="9-1", changes=(Put(extra),)))
        only(w, "I2")


def test_a_registration_that_is_not_stored_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        w.auditor.on_certificate(member(w), b"k" * 32)
        assert any(": I6: " in v for v in w.violations)
        assert any(": I7: " in v for v in w.violations)


def test_a_stranger_that_was_deleted_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        w.auditor.protected[member(w)] = "it belongs to another shard"
        w.do(w.cloud.destroy, member(w))
        w.advance(60.0)  # for a while it is shown as deleted, then not at all
        w.auditor.finish()
        only(w, "I3")


def test_a_server_that_acts_without_leading_is_found() -> None:
    with world(1, SETUP) as w:
        at_rest(w)
        idle = next(s for s in w.servers if not s.leading)
        w.auditor.on_call(idle.name, "delete", member(w))
        assert any("without leading" in v for v in w.violations)


def test_a_shard_that_does_not_settle_in_time_is_found() -> None:
    with world(1, SETUP) as w:
        w.begin()
        w.settle(0.5)
        only(w, "I4")


def test_a_pause_before_the_first_lease_is_no_violation() -> None:
    """The time in that lease is five seconds older than the shard: drains seemed to end too early."""
    pauses = tuple((Point.BEFORE_LEASE, visit, "pause") for visit in (1, 2))
    assert exhaustive.play(exhaustive.Case(crashes=pauses)).violations == ()


def test_a_journal_that_cannot_be_read_is_found() -> None:
    """It is a violation of this seed, and does not end the whole swarm."""
    with world(1, SETUP) as w:
        at_rest(w)
        w.storage.tamper(f"{JOURNAL}{2:020d}.json", None)
        w.settle(10.0)
        only(w, "I6")
