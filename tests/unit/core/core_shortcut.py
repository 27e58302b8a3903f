"""Decisions skip the members that their steps could do nothing about. Looking at all of them must give the same."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from unittest.mock import patch

from nstance.core import decide as deciding
from nstance.core.draft import Draft
from nstance.core.triage import Triage
from nstance.model.decision import Decision, View
from nstance.model.events import Event
from nstance.model.group import Policy
from nstance.model.instance import Put


class Thorough(Draft):
    @property
    def triage(self) -> Triage:
        everybody = list(self.members.values())
        return Triage(
            needs_attention=everybody,
            outdated=everybody,
            existing=0,
            ready=0,
            ready_and_current=0,
            unready=0,
            healthy_until=inf,
            unready_until=inf,
            starting_until=inf,
            retained_until=inf,
        )


def compare(decision: Decision, view: View, events: Sequence[Event], *, now: float, policy: Policy) -> None:
    known = {*view.members, *(getattr(event, "id", None) for event in events)}
    made = (c.instance.id for c in decision.changes if isinstance(c, Put) and c.instance.id not in known)
    with patch.object(deciding, "Draft", Thorough):
        thorough = deciding.decide(view, events, now=now, policy=policy, fresh_ids=made)
    assert replace(decision, wake_at=None) == replace(thorough, wake_at=None)
    # A skipped member may be looked at again a little too early, never too late.
    if thorough.wake_at is not None:
        assert decision.wake_at is not None
        assert decision.wake_at <= thorough.wake_at
