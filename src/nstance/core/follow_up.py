"""Following up what was written down: intents are asked for, tombstones are carried out, doubts are looked at.

Level-triggered: whatever was lost in a crash or a change of leaders is found here again, because it is derived from the
records. A fact says what is under way in this term, so that nothing is asked twice at a time.
"""

from nstance.core import creating
from nstance.core.draft import ABSENCE_IS_TRUE_AFTER, Draft, is_ended
from nstance.model.decision import CheckVm, CreateVm, DeleteDuplicateVm, DeleteVm, Observation, ReasonCode
from nstance.model.events import VmState
from nstance.model.instance import Cause, Instance, State

DELETE_AGAIN = 30.0  # a deletion that was accepted but shows no end is asked for again
LOOK_AGAIN = 5.0
LOOK_MOST = 30.0


def close_deleted(draft: Draft) -> None:
    """Records whose VMs are gone end: others may have waited for that."""
    for instance in draft.needs_attention():
        if instance.state is State.DELETING:
            _close(draft, instance)


def pursue(draft: Draft) -> None:
    close_deleted(draft)
    needs_attention = draft.needs_attention()
    draft.wake(draft.kept_until)
    for instance in needs_attention:
        state = instance.state
        if is_ended(instance):
            _forget(draft, instance)
            continue
        if state is State.PENDING:
            _create(draft, instance)
        elif state is State.DELETING:
            _delete(draft, instance)
        if instance.duplicate_vm is not None:
            _delete_double(draft, instance)
        _check(draft, instance)


def _create(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if facts.creating or draft.now >= creating.registration_due(draft, instance):
        return  # with a nonce that is out of date the VM could never register; it is given up instead
    if draft.now < facts.create_due:
        draft.wake(facts.create_due)
        return
    draft.learn(instance.id, creating=True)
    draft.effect(CreateVm(instance.id))


def _close(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if facts.creating or instance.duplicate_vm is not None:
        return  # a create in flight is settled first, so that it cannot succeed after the delete
    if facts.vm is VmState.DELETED or _long_absent(facts):
        draft.reason(ReasonCode.DELETED, "the provider says that it is gone", instance.id)
        draft.change(instance, state=State.DELETED, ended=draft.now, drain=None)


def _delete(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if facts.creating:
        return  # a create in flight is settled first, so that it cannot succeed after the delete
    if facts.vm is VmState.DELETED or _long_absent(facts) or facts.deleting or not draft.may_delete:
        return
    if facts.deletion_begun is None:
        due = facts.delete_due
    else:
        # Accepted is not done (F55), and "not found" just after it may be a lie (F49): it is looked at until it is gone.
        if not facts.checking and facts.check_due is None:
            draft.learn(instance.id, check_due=draft.now + min(LOOK_MOST, LOOK_AGAIN * (1 + facts.checks)))
        if facts.vm is VmState.ABSENT:
            return
        due = facts.deletion_begun + DELETE_AGAIN
    if draft.now < due:
        draft.wake(due)
        return
    draft.learn(instance.id, deleting=True, deletion_begun=None)
    console = instance.cause is Cause.UNREGISTERED and facts.delete_attempts == 0 and instance.provider_id is not None
    draft.effect(DeleteVm(instance.id, instance.provider_id, keep_console=console))


def _long_absent(facts: Observation) -> bool:
    """ "Not found" just after a create or a delete may be a lie; over two minutes it is not."""
    since, begun, told = facts.absent_since, facts.deletion_begun, facts.vm_at
    if facts.vm is not VmState.ABSENT or since is None or begun is None or told is None:
        return False
    return told >= max(since, begun) + ABSENCE_IS_TRUE_AFTER


def _delete_double(draft: Draft, instance: Instance) -> None:
    assert instance.duplicate_vm is not None
    due = draft.facts(instance.id).duplicate_vm_due
    if not draft.may_delete:
        return
    if draft.now >= due:
        due = draft.now + DELETE_AGAIN
        draft.learn(instance.id, duplicate_vm_due=due)
        draft.effect(DeleteDuplicateVm(instance.id, instance.duplicate_vm))
    draft.wake(due)


def _check(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if facts.checking or facts.check_due is None or is_ended(draft.members[instance.id]):
        return
    if draft.now < facts.check_due:
        draft.wake(facts.check_due)
        return
    draft.learn(instance.id, checking=True, check_due=None, checks=facts.checks + 1)
    draft.effect(CheckVm(instance.id, instance.provider_id))


def _forget(draft: Draft, instance: Instance) -> None:
    due = (instance.ended or 0.0) + draft.policy.deleted_retention
    if draft.now < due:
        draft.wake(due)
    elif draft.view.listed:  # a VM that turned up late is better found with its record
        draft.remove(instance.id)
