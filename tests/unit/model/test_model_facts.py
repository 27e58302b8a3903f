from dataclasses import fields, replace

from nstance.model.decision import Facts, heard_at


def test_heard_at_changes_nothing_else() -> None:
    odd = {field.name: object() for field in fields(Facts)}
    facts = Facts(**odd)  # type: ignore[arg-type]
    assert heard_at(facts, 7.0) == replace(facts, heard=7.0)
