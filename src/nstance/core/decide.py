"""The one entry to deciding: facts of a group and what happened in, a decision out.

Level-triggered: after the events have been taken in, the plan depends on the facts alone, so a lost event costs time and
never correctness. `plan` in the admin tool calls this very function and shows what it says.
"""

from collections.abc import Iterator, Sequence

from nstance.core import creating, health, leaving, pursuing, rotation, scaling
from nstance.core.draft import Draft
from nstance.core.observe import observe
from nstance.model.decision import Decision, View
from nstance.model.events import Event
from nstance.model.group import Policy
from nstance.model.ids import InstanceId


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
    if view.wish is None or not view.wish.paused:
        health.judge(draft)
        leaving.proceed(draft)
        creating.abandon_unregistered(draft)
        scaling.scale(draft)
        scaling.replace_the_unfit(draft)
        rotation.rotate(draft)
        rotation.expire_on_demand(draft)
    # What was promised before is carried out also while paused.
    pursuing.pursue(draft)
    return draft.decision()
