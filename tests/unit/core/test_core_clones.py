"""An instance whose identity two agents use: replaced only if the configuration says so."""

import pytest

from nstance.model import events as ev
from nstance.model.group import Policy
from nstance.model.instance import Cause, Instance, State
from unit.core.core_situation import after, desired, member, name, replacement

SEEN = ev.CloneDetected(name("a"))
REPLACE = Policy(replace_clones=True)


def test_a_cloned_instance_is_kept_until_its_replacement_is_ready() -> None:
    follows = after([member("a"), member("b")], SEEN, size=2, policy=REPLACE)
    assert [m.replaces for m in follows.made] == [name("a")]
    assert follows.in_state(State.RUNNING) == "ab"
    assert "security" in follows.codes()
    members = [follows["a"], member("b"), replacement("n", "a", Cause.REQUESTED)]
    assert after(members, ev.TimerFired(), size=2, policy=REPLACE).in_state(State.DRAINING) == "a"


@pytest.mark.parametrize(
    ("instance", "fields"),
    [
        pytest.param(member("a"), {"policy": Policy()}, id="an alarm is the default"),
        pytest.param(member("a", on_demand=True), {}, id="on demand"),
        pytest.param(member("a"), {"group": desired(1, paused=True)}, id="paused"),
        pytest.param(member("a", State.DRAINING), {}, id="leaving anyway"),
    ],
)
def test_a_clone_is_not_replaced(instance: Instance, fields: dict[str, object]) -> None:
    known = {"size": 1, "policy": REPLACE} | fields
    before = after([instance], ev.TimerFired(), **known)  # type: ignore[arg-type]
    follows = after([instance], SEEN, **known)  # type: ignore[arg-type]
    assert follows.members == before.members
    assert "security" not in follows.codes()


def test_repeated_detection_adds_no_event() -> None:
    first = after([member("a")], SEEN, size=1, policy=REPLACE)
    members = [first["a"], replacement("n", "a", Cause.REQUESTED, State.STARTING)]
    again = after(members, SEEN, SEEN, size=1, policy=REPLACE)
    assert not again.decision.changes
    assert "security" not in again.codes()
