"""Requests from people and operators: on-demand instances, deletions, replacements, acknowledged drains."""

from dataclasses import replace

from nstance.core import creating, leaving
from nstance.core.draft import Draft
from nstance.core.triage import is_ended
from nstance.model import events as ev
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.instance import Cause, Instance, State


def request_instance(draft: Draft, event: ev.InstanceRequested, position: int) -> None:
    known = draft.members.get(event.id)
    if known is not None:
        if not known.on_demand:
            draft.reject(position, Rejection.EXISTS)
        elif is_ended(known):
            draft.reject(position, Rejection.ENDING)  # an ID is never used again
        # Otherwise the request was repeated, and the instance exists.
    elif draft.desired is None:
        draft.reject(position, Rejection.UNKNOWN)
    elif draft.paused:
        draft.reject(position, Rejection.PAUSED)
    elif _is_over_limit(draft, event):
        draft.reject(position, Rejection.LIMIT)
    elif not creating.create_on_demand(draft, draft.desired, event):
        draft.reject(position, Rejection.NO_CAPACITY)


def _is_over_limit(draft: Draft, event: ev.InstanceRequested) -> bool:
    if event.limit is None and event.requester_limit is None:
        return False
    existing = [m for m in draft.members.values() if m.on_demand and not is_ended(m)]
    own = sum(m.requester == event.requester for m in existing)
    return (event.limit is not None and len(existing) >= event.limit) or (
        event.requester_limit is not None and own >= event.requester_limit
    )


def order_removal(draft: Draft, event: ev.RemovalOrdered) -> None:
    """Only an order: nothing leaves before the group shrinks."""
    ranks = {id: rank for rank, id in enumerate(event.ids)}
    for instance in list(draft.members.values()):
        rank = ranks.get(instance.id) if instance.counts else None
        if rank == instance.removal_rank:
            continue
        draft.put(replace(instance, removal_rank=rank))
        if rank is not None:
            message = f"chosen to leave first when the group shrinks{_by(event.by)}"
            draft.add_reason(ReasonCode.REQUESTED, message, instance.id)


def acknowledge_drain(draft: Draft, instance: Instance, event: ev.DrainAcknowledged, position: int) -> None:
    message = f"drain acknowledged{_by(event.by)}"
    if instance.state is not State.DRAINING or instance.drain is None:
        draft.reject(position, Rejection.NOT_DRAINING)
    elif draft.paused:
        # Nothing is deleted while paused; the acknowledgement is stored.
        draft.put(replace(instance, drain=replace(instance.drain, waits=False)))
        draft.add_reason(ReasonCode.DRAINED, f"{message}; instance is deleted when its group is resumed", instance.id)
    else:
        draft.add_reason(ReasonCode.DRAINED, message, instance.id)
        leaving.delete_instance(draft, instance, instance.drain.cause, "drained")


def request_deletion(draft: Draft, instance: Instance, event: ev.DeletionRequested, position: int) -> None:
    message = f"deletion requested{_by(event.by)}"
    if instance.state is State.DELETING or is_ended(instance):
        draft.reject(position, Rejection.ENDING)
    elif draft.paused:
        draft.reject(position, Rejection.PAUSED)
    elif instance.state is State.DRAINING and instance.drain is not None:
        # It will be deleted anyway, but from now on the drain is not cancelled.
        if instance.drain.cause is not Cause.REQUESTED:
            drain = replace(instance.drain, cause=Cause.REQUESTED)
            draft.put(replace(instance, drain=drain, cause=Cause.REQUESTED))
            draft.add_reason(ReasonCode.REQUESTED, f"{message} while it drains", instance.id)
    else:
        leaving.remove_instance(draft, instance, Cause.REQUESTED, message)


def request_replacement(draft: Draft, instance: Instance, event: ev.ReplacementRequested, position: int) -> None:
    message = f"replacement requested{_by(event.by)}"
    if instance.on_demand:
        draft.reject(position, Rejection.ON_DEMAND)
    elif not instance.counts:
        draft.reject(position, Rejection.ENDING)
    elif draft.desired is None:
        draft.reject(position, Rejection.UNKNOWN)
    elif draft.paused:
        draft.reject(position, Rejection.PAUSED)
    elif instance.state is State.RUNNING:
        draft.add_reason(ReasonCode.REQUESTED, message, instance.id)
        draft.put(replace(instance, replace_wanted=True))
    else:
        leaving.remove_instance(draft, instance, Cause.REQUESTED, f"{message} before the agent registered")


def _by(caller: str) -> str:
    return f" by {caller}" if caller else ""
