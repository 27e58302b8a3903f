"""A group that was created through the API is not deleted because its configuration is missing."""

from typing import Any

import pytest

from nstance.core.decide import decide
from nstance.model import events as ev
from nstance.model.decision import CreateVm, Decision, DeleteVm, View
from nstance.model.group import Group, Policy
from nstance.model.instance import State
from nstance.model.rollout import GroupRecord, Revision
from unit.core.core_situation import KEY, NOW, desired, fresh_ids, healthy, member

DYNAMIC = GroupRecord(key=KEY, dynamic=True)


def decided(group: Group | None, *events: ev.Event, record: GroupRecord | None, **view: Any) -> Decision:
    a = member("a")
    situation = View(key=KEY, desired=group, members={a.id: a}, observations={a.id: healthy()}, record=record, **view)
    return decide(situation, events or [ev.GroupChanged()], now=NOW, policy=Policy(), fresh_ids=fresh_ids())


def is_deleted(decision: Decision) -> bool:
    return any(isinstance(e, DeleteVm) for e in decision.effects)


@pytest.mark.parametrize(
    ("group", "before", "dynamic"),
    [
        pytest.param(desired(1, static=False), None, True, id="made through the API"),
        pytest.param(desired(1, static=False), DYNAMIC, True, id="known already"),
        pytest.param(desired(1), None, False, id="static"),
        pytest.param(desired(1, overridden=True), None, True, id="static, set through the API"),
        pytest.param(desired(1), DYNAMIC, False, id="it became static"),
    ],
)
def test_the_journal_remembers_which_groups_the_api_made(
    group: Group, before: GroupRecord | None, dynamic: bool
) -> None:
    kept = decided(group, record=before).record
    assert kept is not None
    assert kept.dynamic is dynamic


def test_its_absence_deletes_nothing() -> None:
    held = decided(None, record=DYNAMIC)
    assert not held.changes
    assert not held.effects
    assert is_deleted(decided(None, record=None))  # a static group that was taken out of the file


def test_a_group_deleted_by_name_is_removed() -> None:
    kept = GroupRecord(key=KEY, dynamic=True, revisions=(Revision(infra_hash="h", started=1.0),))
    gone = decided(None, ev.GroupDeleted(), record=kept)
    assert gone.record is not None
    assert gone.record.is_empty
    assert is_deleted(gone)


def test_a_deletion_that_comes_before_its_configuration_is_gone_changes_nothing() -> None:
    kept = decided(desired(1, static=False), ev.GroupDeleted(), record=DYNAMIC).record
    assert kept is not None
    assert kept.dynamic


@pytest.mark.parametrize("lost", [True, False])
def test_without_the_file_of_groups_a_size_set_through_the_api_is_not_forgotten(lost: bool) -> None:
    """The file says 0, the API had set 1."""
    found = decided(desired(0), record=DYNAMIC, groups_lost=lost)
    assert is_deleted(found) != lost
    assert (found.record is None) == lost


def test_started_work_continues_while_a_group_is_held() -> None:
    a = member("a", State.DELETING)
    b = member("b", State.PENDING)
    situation = View(key=KEY, desired=None, members={a.id: a, b.id: b}, observations={}, record=DYNAMIC)
    found = decide(situation, [ev.TimerFired()], now=NOW, policy=Policy(), fresh_ids=fresh_ids())
    assert [type(e) for e in found.effects] == [CreateVm, DeleteVm]
