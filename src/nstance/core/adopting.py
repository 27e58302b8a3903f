"""VMs with our tags that no record knows: adopted into their group, released, or held.

Every create is journalled first, so such a VM comes from a restored backup or from a foreign copy. It is never deleted
by itself (unless the configuration says so). The trap: adopting more than the group has places for would make the group
scale down, which deletes healthy VMs; so a VM is adopted only where one is missing, and before a new one is created.
"""

from nstance.core.draft import Draft
from nstance.model import events as ev
from nstance.model import ids
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Instance, State
from nstance.model.vm import UnknownVm

LISTING_PATIENCE_SECONDS = 5.0  # a term waits so long for its first listing before it creates VMs that may be there


def adopt_missing(draft: Draft, lack: int) -> int:
    """Fill places with VMs whose agents have presented themselves. Returns how many of `lack` are still to be created
    now; those that a VM may yet be adopted for are left out, and looked at again later."""
    view = draft.view
    if not view.listed and draft.now < view.listening_since + LISTING_PATIENCE_SECONDS:
        draft.wake(view.listening_since + LISTING_PATIENCE_SECONDS)
        return 0
    for unknown in _candidates(draft):
        if lack > 0 and unknown.agent is not None:
            _adopt(draft, unknown, "its agent presented a valid certificate")
            lack -= 1
    until = view.listening_since + max(draft.policy.suspect_after, view.reconnect_grace)
    if lack > 0 and draft.now < until and (expected := len(_candidates(draft))):
        draft.wake(until)  # their agents are given the time that all agents get to reconnect
        lack -= expected
    return max(0, lack)


def _candidates(draft: Draft) -> list[UnknownVm]:
    """The oldest first."""
    running = (u for u in draft.view.unknown if u.is_running and u.vm.id not in draft.members)
    return sorted(running, key=lambda u: (u.vm.id, u.vm.provider_id))


def _find(draft: Draft, id: InstanceId) -> UnknownVm | None:
    """Of several VMs with one ID the one that runs; the others become duplicates of it."""
    found = sorted((u for u in draft.view.unknown if u.vm.id == id), key=lambda u: (not u.is_running, u.vm.provider_id))
    return found[0] if found and id not in draft.members else None


def adopt_requested(draft: Draft, event: ev.AdoptionRequested, position: int) -> None:
    unknown = _find(draft, event.id)
    if unknown is None or draft.desired is None:
        draft.refuse(position, Rejection.UNKNOWN)
    elif draft.desired.paused:
        draft.refuse(position, Rejection.PAUSED)
    elif not unknown.is_running:
        draft.refuse(position, Rejection.NOT_RUNNING)
    elif draft.places() >= draft.size:
        draft.refuse(position, Rejection.NO_ROOM)
    else:
        _adopt(draft, unknown, f"adoption requested by {event.by}" if event.by else "adoption requested")


def release_requested(draft: Draft, event: ev.ReleaseRequested, position: int) -> None:
    unknown = _find(draft, event.id)
    if unknown is None:
        draft.refuse(position, Rejection.UNKNOWN)
        return
    message = f"released by {event.by}" if event.by else "released"
    _bury(draft, unknown.vm.id, unknown.vm.provider_id, Cause.REQUESTED, message)
    draft.reason(ReasonCode.REQUESTED, f"unknown VM {unknown.vm.provider_id} deleted: {message}", event.id)


def delete_orphan(draft: Draft, event: ev.OrphanFound) -> None:
    """The configuration says that unknown VMs are deleted."""
    if event.id in draft.members:
        return
    _bury(draft, event.id, event.provider_id, Cause.ORPHAN, "a VM with our tags that no record knows")
    draft.reason(
        ReasonCode.ORPHAN, f"the provider has {event.provider_id} with our tags but no record knows it", event.id
    )


def _bury(draft: Draft, id: InstanceId, provider_id: ids.ProviderId, cause: Cause, message: str) -> None:
    """The tombstone, which allows the delete."""
    draft.put(
        Instance(
            id=id,
            tenant=draft.view.key.tenant,
            group=draft.view.key.name,
            state=State.DELETING,
            created=draft.now,
            provider_id=provider_id,
            seen=True,
            cause=cause,
            message=message,
        )
    )


def _adopt(draft: Draft, unknown: UnknownVm, why: str) -> None:
    desired, vm, agent = draft.desired, unknown.vm, unknown.agent
    assert desired is not None
    record = Instance(
        id=vm.id,
        tenant=desired.key.tenant,
        group=desired.key.name,
        state=State.RUNNING if agent is not None else State.STARTING,
        created=draft.now,  # its ID has the time of a clock that may have been wrong: nothing expires by that
        template=desired.template,
        instance_type=desired.instance_type,
        infra_hash=desired.infra_hash,  # what it was made from is not known: the next change of the configuration replaces it
        provider_id=vm.provider_id,
        seen=True,
        ip4=vm.ip4,
        ip6=vm.ip6,
        hostname=vm.hostname,
        registered=draft.now if agent is not None else None,
        public_key=agent.public_key if agent is not None else "",
        certificate_serial=agent.certificate_serial if agent is not None else "",
        certificate_expires=agent.certificate_expires if agent is not None else None,
        drain_timeout=draft.drain_timeout,
    )
    draft.put(record)
    # It was refused a moment ago and connects again soon, like one that restarts.
    draft.learn(vm.id, last_seen=draft.now, met=True, restarting=True)
    draft.reason(ReasonCode.ADOPTED, f"VM {vm.provider_id} adopted: {why}", vm.id)
