"""What must hold of any set of records, whatever happened. Tests ask after each step, a server when it loads."""

from collections.abc import Mapping

from nstance.model.ids import InstanceId, is_instance_id
from nstance.model.instance import ENDED, Instance, State

_HAS_REGISTERED = frozenset({State.RUNNING, State.DRAINING})


def violations(records: Mapping[InstanceId, Instance]) -> list[str]:
    """Sentences about what is wrong; empty if nothing is."""
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
        (record.id == id, f"is kept under the ID of {record.id}"),
        (is_instance_id(record.id), "has no valid ID"),
        ((record.drain is not None) or state is not State.DRAINING, "drains without a deadline"),
        (state is not State.RUNNING or record.drain is None, "runs and drains"),
        (state not in _HAS_REGISTERED or bool(record.public_key), f"is {state.value} without a public key"),
        ((record.registered is None) == (not record.public_key), "has a key without registration, or the reverse"),
        ((record.ended is not None) == (state in ENDED), "has an end in the wrong state"),
        (not record.suspect or record.registered is not None, "is suspect without ever having registered"),
        (record.replaces != record.id, "replaces itself"),
        (not record.on_demand or record.replaces is None, "is on-demand and replaces another"),
        (not record.vacant or not record.counts, "has left its place and fills it"),
        (record.duplicate_vm is None or record.duplicate_vm != record.provider_id, "is its own double"),
        (state is not State.STARTING or record.provider_id is not None, "exists without a provider ID"),
    )
    return [problem for holds, problem in rules if not holds]
