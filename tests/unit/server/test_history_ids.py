"""What the history makes of a journal's slot."""

import logging

import pytest

from nstance.clock import SystemClock
from nstance.model.decision import Reason, ReasonCode
from nstance.model.ids import DEFAULT_TENANT, GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Instance, Put, State
from nstance.objects import slots
from nstance.server.leader import history
from nstance.server.state.commits import Committed
from nstance.sim.server import Unkept
from nstance.telemetry.metrics import Metrics

ID = InstanceId("knc-01jw51srryegh9snf9cmeh3k4q")
RECORD = Instance(id=ID, tenant=DEFAULT_TENANT, group=GroupName("web"), state=State.RUNNING, created=5.0)


def slot(number: int, *entries: slots.Entry) -> slots.Slot:
    return slots.Slot(number=number, epoch=1, op="x", at=5.25, entries=entries)


def test_ids_grow_within_a_slot_and_over_slots() -> None:
    one = slots.Entry(
        id="1-1",
        reason=(slots.LoggedReason("a", "1"), slots.LoggedReason("unhealthy", "2", ID)),
        changes=(Put(RECORD),),
    )
    two = slots.Entry(id="1-2", reason=(slots.LoggedReason("b", "3", "", "acme", ""),))
    found = [*history.events(slot(7, one, two)), *history.events(slot(8, two))]
    assert [event.id - history.first_id(7) for event in found] == [0, 1, 2, history.IDS_PER_SLOT]
    assert [(event.tenant, event.group) for event in found[:3]] == [
        ("default", "web"),
        ("default", "web"),
        ("acme", ""),
    ]
    assert {event.time for event in found} == {5.25}
    assert [event.needs_attention for event in found] == [False, True, False, False]


def test_ids_are_above_those_of_older_versions_and_exact_in_a_double() -> None:
    year_2100 = 4_102_444_800_000_000  # microseconds
    assert history.first_id(1) > year_2100
    late = history.first_id(4_000_000_000) + 1
    assert int(float(late)) == late < 1 << 63


def test_a_reason_without_a_group_keeps_its_place() -> None:
    """Older versions wrote such ones where an entry only removes records."""
    old = slots.Entry(id="1-1", reason=(slots.LoggedReason("gone", "whose?"),))
    new = slots.Entry(id="1-2", reason=(slots.LoggedReason("gone", "known", "", "acme", "web"),))
    [event] = history.events(slot(3, old, new))
    assert (event.id, event.tenant, event.group) == (history.first_id(3) + 1, "acme", "web")


def test_the_log_names_an_instance_only_where_an_event_has_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reasons = (Reason(ReasonCode.CONFIG, "size 3 → 4"), Reason(ReasonCode.READY, "instance is ready", ID))
    committed = Committed(RECORD.key, (Put(RECORD),), reasons, before={ID: RECORD})
    history.History(Unkept(), Metrics(), SystemClock()).observe(committed)
    [group, instance] = [vars(record) for record in caplog.records]
    assert not group.keys() & {"instance", "trace_id"}
    assert instance["instance"] == ID
    assert instance["trace_id"]


def test_the_log_names_the_tenant_where_an_event_concerns_all_its_groups(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reasons = (Reason(ReasonCode.CONFIG, "configuration v2 activated by opr-1"),)
    committed = Committed(GroupKey(TenantId("acme"), GroupName("")), (), reasons, before={})
    history.History(Unkept(), Metrics(), SystemClock()).observe(committed)
    [record] = [vars(record) for record in caplog.records]
    assert record["tenant"] == "acme"
    assert "group" not in record
