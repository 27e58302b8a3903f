"""Unknown VMs, which have our tags and no record: adopted into their group, released, or held.

Every intent is journaled before its VM is created, so an unknown VM comes from a restored backup or a foreign copy. It is
never deleted automatically, unless the configuration says so. Adopting more VMs than the group has places for would make
it scale down and delete healthy VMs. So a VM is adopted only if one is missing, and before a new one is created.
"""

from dataclasses import replace

from nstance.core.draft import Draft
from nstance.model import events as ev
from nstance.model.decision import ReasonCode, Rejection
from nstance.model.ids import InstanceId, ProviderId
from nstance.model.instance import Cause, Instance, State
from nstance.model.vm import UnknownVm

FIRST_LISTING_SECONDS = 5.0  # a term waits so long for its first listing before it creates VMs that may already exist


def adopt_missing(draft: Draft, missing: int) -> int:
    """Fill free places with VMs whose agents have presented a certificate. Returns how many instances are still to be
    created now; places that a VM may yet be adopted for are left out and decided later."""
    view = draft.view
    if not view.listed and draft.now < view.listening_since + FIRST_LISTING_SECONDS:
        draft.wake(view.listening_since + FIRST_LISTING_SECONDS)
        return 0
    for unknown in _candidates(draft):
        if missing > 0 and unknown.agent is not None:
            _adopt(draft, unknown, "agent presented a valid certificate")
            missing -= 1
    until = draft.limits.reconnect_until
    if missing > 0 and draft.now < until and (expected := len(_candidates(draft))):
        draft.wake(until)  # their agents get the time that all agents get to reconnect
        missing -= expected
    return max(0, missing)


def _candidates(draft: Draft) -> list[UnknownVm]:
    """Oldest first."""
    running = (u for u in draft.view.unknown if u.is_running and u.vm.id not in draft.members)
    return sorted(running, key=lambda u: (u.vm.id, u.vm.provider_id))


def _find(draft: Draft, id: InstanceId) -> UnknownVm | None:
    """Of several VMs with one ID the running one; the others become its duplicates."""
    found = sorted((u for u in draft.view.unknown if u.vm.id == id), key=lambda u: (not u.is_running, u.vm.provider_id))
    return found[0] if found and id not in draft.members else None


def adopt_requested(draft: Draft, event: ev.AdoptionRequested, position: int) -> None:
    unknown = _find(draft, event.id)
    if unknown is None or draft.desired is None:
        draft.reject(position, Rejection.UNKNOWN)
    elif draft.paused:
        draft.reject(position, Rejection.PAUSED)
    elif not unknown.is_running:
        draft.reject(position, Rejection.NOT_RUNNING)
    elif draft.count_places() >= draft.size:
        draft.reject(position, Rejection.NO_ROOM)
    else:
        _adopt(draft, unknown, f"adoption requested by {event.by}" if event.by else "adoption requested")


def release_requested(draft: Draft, event: ev.ReleaseRequested, position: int) -> None:
    unknown = _find(draft, event.id)
    if unknown is None:
        draft.reject(position, Rejection.UNKNOWN)
        return
    message = f"released by {event.by}" if event.by else "released"
    _write_tombstone(draft, event.id, unknown.vm.provider_id, Cause.REQUESTED, message)
    draft.add_reason(ReasonCode.REQUESTED, f"unknown VM {unknown.vm.provider_id} deleted: {message}", event.id)


def delete_orphan(draft: Draft, event: ev.OrphanFound) -> None:
    """The configuration says that unknown VMs are deleted."""
    if event.id in draft.members:
        return
    _write_tombstone(draft, event.id, event.provider_id, Cause.ORPHAN, "VM with our tags and without a record")
    message = f"unknown VM {event.provider_id} deleted: it has our tags and no record"
    draft.add_reason(ReasonCode.ORPHAN, message, event.id)


def _write_tombstone(draft: Draft, id: InstanceId, provider_id: ProviderId, cause: Cause, message: str) -> None:
    tombstone = Instance(
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
    draft.put(tombstone)


def _adopt(draft: Draft, unknown: UnknownVm, why: str) -> None:
    desired, vm, agent = draft.desired, unknown.vm, unknown.agent
    assert desired is not None
    record = Instance(
        id=vm.id,
        tenant=desired.key.tenant,
        group=desired.key.name,
        state=State.RUNNING if agent is not None else State.STARTING,
        created=draft.now,  # the time in its ID is from a clock that may have been wrong: nothing expires by that
        template=desired.template,
        instance_type=desired.instance_type,
        infra_hash=desired.infra_hash,  # its revision is not known: the next change of the configuration replaces it
        provider_id=vm.provider_id,
        seen=True,
        made=draft.now,
        ip4=vm.ip4,
        ip6=vm.ip6,
        hostname=vm.hostname,
        registered=draft.now if agent is not None else None,
        **(agent.as_fields() if agent is not None else {}),
        drain_timeout=draft.drain_timeout,
    )
    draft.put(record)
    # Its agent was rejected and connects again when its back-off is over.
    known = draft.observation(vm.id).agent
    draft.observe(vm.id, agent=replace(known, last_seen=draft.now, seen_this_term=True, adopted=True))
    draft.add_reason(ReasonCode.ADOPTED, f"VM {vm.provider_id} adopted: {why}", vm.id)
