"""The one entry to deciding: facts of a group and what happened in, a decision out.

Level-triggered: after the events have been taken in, the plan depends on the facts alone, so a lost event costs time and
never correctness. One step can make room for another (a cancelled drain, a place that became free), so the steps are
repeated until none of them changes anything: planning once more would find nothing to do. `plan` in the admin tool calls
this very function and shows what it says.
"""

from collections.abc import Iterator, Sequence

from nstance.core import (
    creating,
    draining,
    follow_up,
    health,
    held_groups,
    leaving,
    readiness,
    replacing,
    rollout,
    rotation,
    scaling,
)
from nstance.core.draft import Draft
from nstance.core.observe import observe
from nstance.model.decision import Decision, View
from nstance.model.events import Event
from nstance.model.group import Policy
from nstance.model.ids import InstanceId

PASSES = 5  # more than any known situation needs; a bug here must not hang a server


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
        observe(draft, event, position)
    held_groups.keep_record(draft)
    if not held_groups.is_held(view, draft.record) and (view.desired is None or not view.desired.paused):
        for _ in range(PASSES):
            before = draft.revision, draft.record
            draft.forget_wakes()
            _plan(draft)
            if (draft.revision, draft.record) == before:
                break
    # What was promised before is carried out also while paused.
    follow_up.pursue(draft)
    rollout.forget(draft)
    return draft.decision()


def _plan(draft: Draft) -> None:
    """In the order of their priority: what is more urgent gets its VM first."""
    health.judge(draft)
    readiness.judge(draft)
    draining.proceed(draft)
    creating.abandon_unregistered(draft)
    rollout.follow(draft)
    replacing.drop_needless_replacements(draft)
    scaling.shrink(draft)
    replacing.replace_the_unfit(draft)
    replacing.finish(draft)
    rotation.rotate(draft)
    rotation.expire_on_demand(draft)
    scaling.grow(draft)
    leaving.keep_timeout(draft)
    follow_up.close_deleted(draft)
