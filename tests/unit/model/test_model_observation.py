from dataclasses import fields, replace

from nstance.model.observation import AgentObservation, Observation, last_seen_at


def test_last_seen_at_changes_nothing_else() -> None:
    agent = AgentObservation(**{field.name: object() for field in fields(AgentObservation)})  # type: ignore[arg-type]
    observation = Observation(agent, vm=object(), calls=object())  # type: ignore[arg-type]
    assert last_seen_at(observation, 7.0) == replace(observation, agent=replace(agent, last_seen=7.0))
