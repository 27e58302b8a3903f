"""Rules that hold for any set of records. Tests check them after each step, a server when it loads."""

from collections.abc import Mapping

from nstance.model.ids import InstanceId, is_instance_id
from nstance.model.instance import ENDED, Instance, State

_REGISTERED = frozenset({State.RUNNING, State.DRAINING})


def violations(records: Mapping[InstanceId, Instance]) -> list[str]:
    """One sentence for each broken rule."""
    found = []
    owners: dict[str, InstanceId] = {}
    for id, record in records.items():
        found += [f"{id}: {problem}" for problem in _problems(id, record)]
        for name, value in (("provider ID", record.provider_id), ("public key", record.public_key)):
            if value and (other := owners.setdefault(f"{name} {value}", id)) != id:
                found.append(f"{id}: has the {name} of {other}")
    return found


def _problems(id: InstanceId, record: Instance) -> list[str]:
    state = record.state
    rules = (
        (record.id == id, f"is stored under the ID of {record.id}"),
        (is_instance_id(record.id), "has no valid ID"),
        ((record.drain is not None) or state is not State.DRAINING, "is draining without a deadline"),
        (state is not State.RUNNING or record.drain is None, "is running and has a drain"),
        (state not in _REGISTERED or bool(record.public_key), f"is {state.value} without a public key"),
        ((record.registered is None) == (not record.public_key), "has a key without registration, or the reverse"),
        ((record.ended is not None) == (state in ENDED), "has an end time in the wrong state"),
        (not record.suspect or record.registered is not None, "is suspect and never registered"),
        (record.replaces != record.id, "replaces itself"),
        (not record.on_demand or record.replaces is None, "is on-demand and replaces another"),
        (not record.vacant or not record.counts, "is vacant and counts as capacity"),
        (record.duplicate_vm is None or record.duplicate_vm != record.provider_id, "is its own duplicate VM"),
        (state is not State.STARTING or record.provider_id is not None, "is starting without a provider ID"),
    )
    return [problem for holds, problem in rules if not holds]
