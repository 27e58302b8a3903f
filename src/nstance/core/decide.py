"""Decide what to do about one group.

Decisions are level-triggered: once the events are applied, the plan depends only on the group's state, so a lost event
costs time and never correctness. One step can make room for another (a cancelled drain, a place that became free), so
the steps are repeated until none of them changes anything. The admin tool's `plan` calls this function too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nstance.core import (
    creating,
    draining,
    follow_up,
    health,
    leaving,
    readiness,
    replacing,
    rollout,
    rotation,
    scaling,
)
from nstance.core.draft import Draft
from nstance.core.observe import apply_event
from nstance.model.decision import Decision, View
from nstance.model.events import Event
from nstance.model.group import Policy
from nstance.model.ids import InstanceId
from nstance.model.rollout import GroupRecord

MAX_PASSES = 5  # more than any known situation needs; a bug here must not hang a server

# In order of priority: what is more urgent gets its VM first.
_STEPS = (
    health.check_health,
    readiness.check_readiness,
    draining.advance_drains,
    creating.abandon_unregistered,
    rollout.update_rollout,
    replacing.drop_unneeded_replacements,
    scaling.scale_down,
    replacing.start_involuntary_replacements,
    replacing.finish_replacements,
    rotation.rotate_instances,
    rotation.expire_on_demand,
    scaling.scale_up,
    leaving.store_drain_timeout,
    follow_up.close_deleted_records,
)


def decide(
    view: View,
    events: Sequence[Event],
    *,
    now: float,
    policy: Policy,
    fresh_ids: Iterator[InstanceId],
) -> Decision:
    draft = Draft(view, now=now, policy=policy, fresh_ids=fresh_ids)
    for position, event in enumerate(events):
        apply_event(draft, event, position)
    _update_dynamic_flag(draft)
    if not is_held(view, draft.record) and not draft.paused:
        for _ in range(MAX_PASSES):
            before = draft.change_count, draft.record
            draft.clear_wake()
            for step in _STEPS:
                step(draft)
            if (draft.change_count, draft.record) == before:
                break
    # What the journal already promises is carried out also while the group is paused.
    follow_up.follow_up_records(draft)
    rollout.drop_revisions_of_deleted_group(draft)
    return draft.build_decision()


def is_held(view: View, record: GroupRecord | None) -> bool:
    """Whether the group was created through the API and is missing from the configuration although nobody deleted it.

    Such a group is stored only in `groups.jsonc`, which may be lost or restored from an older backup. The journal remembers
    which groups were dynamic. Nothing is created or deleted until the group is configured again or deleted by name."""
    if record is None or not record.dynamic:
        return False
    desired = view.desired
    return desired is None or (desired.static and not desired.overridden and view.groups_lost)


def _update_dynamic_flag(draft: Draft) -> None:
    """Store whether the group, or a setting of it, comes from the API."""
    desired = draft.desired
    if desired is None or is_held(draft.view, draft.record):
        return
    dynamic = not desired.static or desired.overridden
    if dynamic != (draft.record is not None and draft.record.dynamic):
        draft.record = replace(draft.record or GroupRecord(key=draft.view.key), dynamic=dynamic)
