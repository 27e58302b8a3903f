from dataclasses import fields, replace

from nstance.model.decision import Observation, last_seen_at


def test_heard_at_changes_nothing_else() -> None:
    odd = {field.name: object() for field in fields(Observation)}
    facts = Observation(**odd)  # type: ignore[arg-type]
    assert last_seen_at(facts, 7.0) == replace(facts, last_seen=7.0)
