"""Work within the group's limits: rotate drifted instances, follow rebalance hints, renew old instances.

It starts only while every place is filled, and creates the replacement first. The limits count every VM that exists:
`max_surge` is how many there may be above the size, including those that drain; `max_unavailable` allows to remove some
first instead, and is how many ready ones may then be missing. An instance that is removed first keeps its place until its
VM is gone, or its replacement would exceed `max_surge`.

Voluntary work also waits while an instance is suspect, while a rollout is held, and during mass silence. An instance past
its forced age waits only for the limits and the order.
"""

from collections.abc import Iterator, Sequence, Set
from math import inf

from nstance.core import creating, health, leaving, replacing, rollout
from nstance.core.draft import Draft, drifted
from nstance.model.events import NoticeKind
from nstance.model.group import Group, Preference, UpdateOrder
from nstance.model.instance import Cause, Instance, State

_FORCED = frozenset({Cause.FORCED_EXPIRY})
_ELIGIBLE = frozenset({Cause.ELIGIBLE_EXPIRY})
_ROTATED = replacing.VOLUNTARY - _ELIGIBLE

_MESSAGES = {
    Cause.DRIFT: "instance is of an outdated revision",
    Cause.SPOT: "provider hints that it may reclaim the VM",
    Cause.ELIGIBLE_EXPIRY: "instance is past its eligible age",
    Cause.FORCED_EXPIRY: "instance is past its forced age",
    Cause.PREFERENCE: "a better market or instance type may have capacity again",
}


def rotate_instances(draft: Draft) -> None:
    desired = draft.desired
    if desired is None:
        return
    if draft.policy.forced_age is not None and rollout.can_start(draft, Cause.FORCED_EXPIRY):
        _rotate(draft, desired, _FORCED)
    if rollout.can_start(draft, Cause.DRIFT) and not any(m.suspect for m in draft.needs_attention() if m.counts):
        _rotate(draft, desired, _ROTATED)


def _rotate(draft: Draft, desired: Group, causes: Set[Cause]) -> None:
    if draft.count_places() != desired.size:
        return
    surge = max_surge(desired) - (draft.count_existing() - desired.size)
    unavailable, unready = desired.size - draft.count_ready(), draft.count_unready()
    if surge < 0 or (surge == 0 and unavailable - unready >= desired.max_unavailable):
        return
    if unready:
        unready = sum(1 for _ in _candidates(draft, causes, unready=True))
    steps, started = len(draft.members), False
    # The candidates may be all members: iterate no further than the limits allow.
    for cause, member in _order_candidates(draft, causes):
        if not started:
            steps, started = _allowed_steps(draft, desired, member, causes), True
        if steps <= 0:
            return
        is_unready = draft.is_unready(member)
        # An unready instance is no loss; but if other unready ones recover, enough must be left.
        missing = unavailable - unready if is_unready else unavailable
        if surge > 0:
            if replacing.start_replacement(draft, cause, member) is None:
                return
            surge -= 1
        elif cause is Cause.PREFERENCE:
            return  # only by creating the replacement first: the better offer may still have no capacity
        elif missing < desired.max_unavailable and creating.can_create(draft):
            if is_unready:
                unready -= 1
            else:
                unavailable += 1
            leaving.remove_instance(draft, member, cause, _MESSAGES[cause])
        else:
            return
        steps -= 1
    if not started and causes is _ROTATED:
        _renew_oldest(draft, desired, surge)


def _renew_oldest(draft: Draft, desired: Group, surge: int) -> None:
    """Past the eligible age: one at a time, and only while all instances exist and are ready."""
    aged = [m for _, m in _candidates(draft, _ELIGIBLE)]
    if not aged or not draft.count_existing() == draft.count_ready() == desired.size:
        return
    oldest = min(aged, key=lambda m: (m.created, m.id))
    if _allowed_steps(draft, desired, oldest, _ELIGIBLE) <= 0:
        return
    if surge > 0:
        replacing.start_replacement(draft, Cause.ELIGIBLE_EXPIRY, oldest)
    elif desired.max_unavailable and creating.can_create(draft):
        leaving.remove_instance(draft, oldest, Cause.ELIGIBLE_EXPIRY, _MESSAGES[Cause.ELIGIBLE_EXPIRY])


def _order_candidates(draft: Draft, causes: Set[Cause]) -> Iterator[tuple[Cause, Instance]]:
    """The unready ones first, of those the longest unready. One that only waits for files that cannot be rendered comes
    last of them: it serves with those that it has, and the others may stay unready."""
    if draft.count_unready():
        yield from sorted(_candidates(draft, causes, unready=True), key=lambda found: _loss(draft, found[1]))
        yield from _candidates(draft, causes, unready=False)
    else:
        yield from _candidates(draft, causes)


def _loss(draft: Draft, unready: Instance) -> tuple[bool, float]:
    agent = draft.observation(unready.id).agent
    return agent.serving, inf if agent.unready_since is None else agent.unready_since


def _candidates(draft: Draft, causes: Set[Cause], *, unready: bool | None = None) -> Iterator[tuple[Cause, Instance]]:
    replacements = draft.replacements()
    for member in _members_to_look_at(draft, causes):
        if member.state is not State.RUNNING or member.suspect or member.on_demand or member.id in replacements:
            continue
        if unready is not None and draft.is_unready(member) is not unready:
            continue
        cause = replacing.limited_cause(draft, member)
        if cause in causes and cause is not None and rollout.can_start(draft, cause):
            yield cause, member


def _members_to_look_at(draft: Draft, causes: Set[Cause]) -> Sequence[Instance]:
    if causes is not _ROTATED:
        return draft.needs_attention()  # old ones are among them
    is_strict = draft.desired is not None and draft.desired.prefer is Preference.STRICT
    return draft.capacity() if is_strict else draft.triage.outdated


def _allowed_steps(draft: Draft, desired: Group, first: Instance, causes: Set[Cause]) -> int:
    """How many replacements may start now by order and canaries; `first` is the first one to be replaced."""
    canaries = rollout.remaining_canaries(draft) if causes is not _FORCED else None
    steps = len(draft.members) if canaries is None else canaries
    if desired.order is UpdateOrder.PARALLEL:
        return steps
    complete = draft.count_ready() == desired.size or draft.is_unready(first)
    return min(steps, 1) if complete and not _is_step_under_way(draft, desired) else 0


def _is_step_under_way(draft: Draft, desired: Group) -> bool:
    """In a serial rollout: an old instance is not gone yet, or a new one has not been ready for long enough."""
    if draft.replacements() or any(is_leaving_in_turn(draft, m) for m in draft.needs_attention()):
        return True
    for member in draft.capacity():
        if drifted(member, desired):
            continue
        if not draft.is_ready(member):
            return True
        settled = draft.observation(member.id).agent.ready_since + desired.settle
        if not draft.is_due(settled):
            return True
    return False


def max_surge(desired: Group) -> int:
    """If both limits were zero, nothing could ever be replaced."""
    return desired.max_surge or (0 if desired.max_unavailable else 1)


def is_leaving_in_turn(draft: Draft, instance: Instance) -> bool:
    """Whether it drains or is being deleted because of a rotation, an expiry or a hint."""
    if instance.on_demand or (instance.state is not State.DRAINING and instance.state is not State.DELETING):
        return False
    if instance.cause is Cause.SPOT:
        return draft.observation(instance.id).agent.notice is NoticeKind.REBALANCE
    return instance.cause in replacing.LIMITED


def count_occupied_places(draft: Draft) -> int:
    """Places that work within the limits has emptied and that may not be filled yet: the VM that was removed first still
    exists, and one more would exceed `max_surge`."""
    desired = draft.desired
    leaving_members = [m for m in draft.needs_attention() if is_leaving_in_turn(draft, m)]
    if desired is None or not leaving_members:
        return 0
    replaced = {m.replaces for m in draft.capacity()}
    starting = sum(
        m.replaces_for in replacing.LIMITED and health.imminent_end(draft, draft.members[old]) is None
        for old, group in draft.replacements().items()
        for m in group
    )
    removed_first = sum(m.id not in replaced for m in leaving_members)
    return min(removed_first, max(0, len(leaving_members) + starting - max_surge(desired)))


def expire_on_demand(draft: Draft) -> None:
    age = draft.policy.ondemand_age
    if age is None or not draft.can_delete:
        return
    for instance in draft.needs_attention():
        if not instance.on_demand or instance.state is not State.RUNNING:
            continue
        if draft.is_due(instance.created + age):
            message = "on-demand instance is past its maximum age"
            leaving.remove_instance(draft, instance, Cause.ONDEMAND_EXPIRY, message)
