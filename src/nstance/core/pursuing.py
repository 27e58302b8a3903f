"""Following up what was written down: intents are asked for, tombstones are carried out, doubts are looked at.

Level-triggered: whatever was lost in a crash or a change of leaders is found here again, because it is derived from the
records. A fact says what is under way in this term, so that nothing is asked twice at a time.
"""

from nstance.core.draft import ABSENCE_IS_TRUE_AFTER, Draft, is_ended
from nstance.model.decision import CheckVm, Code, CreateVm, DeleteVm
from nstance.model.events import VmState
from nstance.model.instance import Instance, State

DELETE_AGAIN = 30.0  # a deletion that was accepted but shows no end is asked for again
LOOK_AGAIN = 5.0


def pursue(draft: Draft) -> None:
    for instance in list(draft.members.values()):
        if is_ended(instance):
            _forget(draft, instance)
            continue
        if instance.state is State.PENDING:
            _create(draft, instance)
        elif instance.state is State.DELETING:
            _delete(draft, instance)
        _check(draft, instance)


def _create(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if facts.creating:
        return
    if draft.now < facts.create_due:
        draft.wake(facts.create_due)
        return
    draft.learn(instance.id, creating=True)
    draft.effect(CreateVm(instance.id))


def _delete(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if facts.vm is VmState.DELETED or _long_absent(draft, instance):
        draft.change(instance, state=State.DELETED, ended=draft.now, drain=None)
        draft.reason(Code.DELETED, "the provider says that it is gone", instance.id)
        return
    if facts.deleting or facts.creating or not draft.view.listed or draft.view.mass_absence:
        return  # a create in flight is settled first, so that it cannot succeed after the delete
    if facts.deletion_begun is not None:
        still_there = facts.vm is not VmState.ABSENT
        again = facts.deletion_begun + DELETE_AGAIN
        if not still_there or draft.now < again:
            if still_there:
                draft.wake(again)
            if not facts.checking and facts.check_due is None:
                draft.learn(instance.id, check_due=draft.now + LOOK_AGAIN * min(6, 1 + facts.checks))
            return
    elif draft.now < facts.delete_due:
        draft.wake(facts.delete_due)
        return
    draft.learn(instance.id, deleting=True, deletion_begun=None)
    draft.effect(DeleteVm(instance.id, instance.provider_id))


def _long_absent(draft: Draft, instance: Instance) -> bool:
    """ "Not found" just after a create or a delete may be a lie; over two minutes it is not."""
    facts = draft.facts(instance.id)
    if facts.vm is not VmState.ABSENT or facts.absent_since is None or facts.deletion_begun is None:
        return False
    since = max(facts.absent_since, facts.deletion_begun)
    if draft.now >= since + ABSENCE_IS_TRUE_AFTER and facts.vm_at is not None and facts.vm_at > since:
        return True
    draft.wake(since + ABSENCE_IS_TRUE_AFTER)
    return False


def _check(draft: Draft, instance: Instance) -> None:
    facts = draft.facts(instance.id)
    if facts.checking or facts.check_due is None or draft.members[instance.id].state is State.DELETED:
        return
    if draft.now < facts.check_due:
        draft.wake(facts.check_due)
        return
    draft.learn(instance.id, checking=True, check_due=None, checks=facts.checks + 1)
    draft.effect(CheckVm(instance.id, instance.provider_id))


def _forget(draft: Draft, instance: Instance) -> None:
    due = (instance.ended or 0.0) + draft.policy.deleted_retention
    if draft.now >= due:
        draft.remove(instance.id)
    else:
        draft.wake(due)
