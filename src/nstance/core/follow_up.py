"""Carry out what the records say: create intents, delete tombstones, check doubtful VMs.

Everything is derived from the records, so what was lost in a crash or a change of leaders is found again here. The call
observation says what is under way in this term, so that nothing is called twice at a time.
"""

from dataclasses import replace

from nstance.core import creating
from nstance.core.draft import ABSENCE_CERTAIN_AFTER_SECONDS, Draft
from nstance.core.triage import is_ended
from nstance.model.decision import CheckVm, CreateVm, DeleteDuplicateVm, DeleteVm, ReasonCode
from nstance.model.events import VmState
from nstance.model.instance import Cause, Instance, State
from nstance.model.observation import Observation

DELETE_REPEAT_SECONDS = 30.0  # after a delete that was accepted but has not finished
_UNREGISTERED = frozenset({State.PENDING, State.STARTING})
CHECK_DELETED_SECONDS, CHECK_DELETED_MAX_SECONDS = 5.0, 30.0


def close_deleted_records(draft: Draft) -> None:
    """End the records whose VMs are gone: other steps may have waited for that."""
    for instance in draft.needs_attention():
        if instance.state is State.DELETING:
            observed = draft.observation(instance.id)
            # A create in flight is settled first, so that it cannot succeed after the delete.
            if not observed.calls.creating and instance.duplicate_vm is None and _is_deleted(observed):
                draft.add_reason(ReasonCode.DELETED, "provider confirmed that the VM is gone", instance.id)
                draft.put(replace(instance, state=State.DELETED, ended=draft.now, drain=None))
                creating.on_vm_gone(draft, instance)


def follow_up_records(draft: Draft) -> None:
    close_deleted_records(draft)
    needs_attention = draft.needs_attention()
    draft.wake(draft.triage.retained_until)
    _drop_records(draft, [m for m in needs_attention if is_ended(m)])
    for instance in needs_attention:
        if is_ended(instance):
            continue
        if instance.state is State.PENDING:
            _create_vm(draft, instance)
        elif instance.state is State.DELETING:
            _delete_vm(draft, instance)
        if instance.duplicate_vm is not None:
            _delete_duplicate(draft, instance)
        _check_vm(draft, instance)


def _create_vm(draft: Draft, instance: Instance) -> None:
    calls = draft.observation(instance.id).calls
    if calls.creating or draft.now >= creating.registration_deadline(draft, instance):
        return  # with an expired nonce the VM could never register; the instance is abandoned instead
    if draft.is_due(calls.create_due):
        draft.observe(instance.id, calls=replace(calls, creating=True, create_asked=draft.now))
        draft.add_effect(CreateVm(instance.id, may_exist=not calls.own_intent or calls.create_attempts > 0))


def _delete_vm(draft: Draft, instance: Instance) -> None:
    observed = draft.observation(instance.id)
    vm, calls = observed.vm, observed.calls
    if calls.creating:
        return  # a create in flight is settled first, so that it cannot succeed after the delete
    if _is_deleted(observed) or calls.deleting or not draft.can_delete:
        return
    due, accepted_at = calls.delete_due, calls.delete_accepted_at
    if accepted_at is not None:
        # Accepted is not finished, and "not found" just after it may be wrong: the VM is checked until it is gone.
        if not calls.checking and calls.check_due is None:
            wait = min(CHECK_DELETED_MAX_SECONDS, CHECK_DELETED_SECONDS * (1 + calls.checks))
            calls = replace(calls, check_due=draft.now + wait)
            draft.observe(instance.id, calls=calls)
        if vm.state is VmState.ABSENT:
            return
        due = accepted_at + DELETE_REPEAT_SECONDS
    if not draft.is_due(due):
        return
    draft.observe(instance.id, calls=replace(calls, deleting=True, delete_accepted_at=None))
    console = instance.cause is Cause.UNREGISTERED and calls.delete_attempts == 0 and instance.provider_id is not None
    draft.add_effect(DeleteVm(instance.id, instance.provider_id, keep_console=console))


def _is_deleted(observed: Observation) -> bool:
    """Shortly after a create or delete "not found" may be wrong; after two minutes it is believed."""
    vm, accepted_at = observed.vm, observed.calls.delete_accepted_at
    if vm.state is VmState.DELETED:
        return True
    since, checked_at = vm.absent_since, vm.checked_at
    if vm.state is not VmState.ABSENT or since is None or accepted_at is None or checked_at is None:
        return False
    return checked_at >= max(since, accepted_at) + ABSENCE_CERTAIN_AFTER_SECONDS


def _delete_duplicate(draft: Draft, instance: Instance) -> None:
    assert instance.duplicate_vm is not None
    if not draft.can_delete:
        return
    calls = draft.observation(instance.id).calls
    if draft.now >= calls.duplicate_delete_due:
        calls = replace(calls, duplicate_delete_due=draft.now + DELETE_REPEAT_SECONDS)
        draft.observe(instance.id, calls=calls)
        draft.add_effect(DeleteDuplicateVm(instance.id, instance.duplicate_vm))
    draft.wake(calls.duplicate_delete_due)


def _check_vm(draft: Draft, instance: Instance) -> None:
    calls = draft.observation(instance.id).calls
    if calls.checking or calls.check_due is None or is_ended(draft.members[instance.id]):
        return
    if draft.is_due(calls.check_due):
        draft.observe(instance.id, calls=replace(calls, checking=True, check_due=None, checks=calls.checks + 1))
        draft.add_effect(CheckVm(instance.id, instance.provider_id))


def _drop_records(draft: Draft, ended: list[Instance]) -> None:
    """When nobody asks for them any more. Until a place is filled, its record says why it is empty."""
    due = [m for m in ended if not m.vacant and draft.is_due((m.ended or 0.0) + draft.policy.deleted_retention)]
    if not due or not draft.view.listed:  # a VM that appears late is better found while its record exists
        return
    unfilled = {m.replaces or m.predecessor for m in draft.members.values() if m.vacant or m.state in _UNREGISTERED}
    for instance in due:
        if instance.id not in unfilled:
            draft.remove(instance.id)
