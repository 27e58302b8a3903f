"""Builders for group situations: members, observations, and the result of a decision."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from nstance.core.decide import decide
from nstance.model.decision import Decision, View
from nstance.model.events import Event, VmState
from nstance.model.group import Group, Policy
from nstance.model.ids import GroupKey, GroupName, InstanceId, Kind, ProviderId, TenantId
from nstance.model.instance import Cause, Drain, Instance, Put, State
from nstance.model.observation import AgentObservation, CallObservation, Observation, VmObservation

NOW = 1_000_000.0
KEY = GroupKey(TenantId("default"), GroupName("web"))


def name(letter: str) -> InstanceId:
    return InstanceId(f"web-{'0' * 25}{letter}")


def fresh_ids() -> Iterator[InstanceId]:
    return (InstanceId(f"web-1{n:025}") for n in range(10_000))


def desired(size: int, **fields: Any) -> Group:
    return Group(**{"key": KEY, "size": size, "template": "t", "kind": Kind("web"), "infra_hash": "h"} | fields)


def member(letter: str, state: State = State.RUNNING, **fields: Any) -> Instance:
    """A record as it would really look in that state."""
    has_vm = state is not State.PENDING and state is not State.FAILED
    registered = state in (State.RUNNING, State.DRAINING)
    known: dict[str, Any] = {
        "id": name(letter),
        "tenant": KEY.tenant,
        "group": KEY.name,
        "state": state,
        "created": NOW - 100.0,
        "infra_hash": "h",
        "provider_id": ProviderId(f"i-{letter}") if has_vm else None,
        "seen": has_vm,
        "registered": NOW - 90.0 if registered else None,
        "ready_at": NOW - 80.0 if registered else None,
        "public_key": f"key-{letter}" if registered else "",
    }
    if state is State.DRAINING:
        cause = fields.pop("cause", Cause.SCALE_DOWN)
        deadline = fields.pop("deadline", NOW + 50.0)
        known |= {"cause": cause, "drain": Drain(started=NOW - 10.0, cause=cause, deadline=deadline, waits=True)}
    if state in (State.DELETED, State.FAILED):
        known["ended"] = NOW - 10.0
    return Instance(**known | fields)


def replacement(letter: str, old: str, cause: Cause, state: State = State.RUNNING, **fields: Any) -> Instance:
    return member(letter, state, replaces=name(old), replaces_for=cause, **fields)


def observation(**fields: Any) -> Observation:
    """From the fields of all its parts; `vm` is the state of the VM."""
    fields = {"state" if name == "vm" else name: value for name, value in fields.items()}
    parts = [
        kind(**{each.name: fields.pop(each.name) for each in dataclasses.fields(kind) if each.name in fields})
        for kind in (AgentObservation, VmObservation, CallObservation)
    ]
    assert not fields, f"no such field: {', '.join(fields)}"
    return Observation(*parts)  # type: ignore[arg-type]


def healthy(**fields: Any) -> Observation:
    return observation(
        **{
            "last_seen": NOW - 1.0,
            "connected": True,
            "seen_this_term": True,
            "ready": True,
            "vm": VmState.RUNNING,
            "checked_at": NOW - 5.0,
        }
        | fields
    )


def unready(why: str = "its files are not installed yet", **fields: Any) -> Observation:
    """Its agent is connected and reports that it is not ready."""
    return healthy(**{"ready": False, "not_ready": why} | fields)


def lost(seconds: float, **fields: Any) -> Observation:
    """Its connection ended and it was last seen so long ago; the provider just said that its VM runs."""
    since = NOW - seconds
    known = {"last_seen": since, "seen_this_term": True, "lost_at": since, "checks": 4}
    return observation(**known | {"vm": VmState.RUNNING, "checked_at": NOW} | fields)


class After:
    """What a decision leads to."""

    def __init__(self, view: View, decision: Decision) -> None:
        self.decision = decision
        self.members = dict(view.members)
        for change in decision.changes:
            if isinstance(change, Put):
                self.members[change.instance.id] = change.instance
            else:
                del self.members[change.id]
        self.observed = {**view.observations, **decision.observations}
        self.record = decision.record or view.record
        self.made = [m for m in self.members.values() if m.id not in view.members]

    def __getitem__(self, letter: str) -> Instance:
        return self.members[name(letter)]

    def observation(self, letter: str) -> Observation:
        return self.observed[name(letter)]

    def in_state(self, state: State) -> str:
        """The letters of the members in that state that were there before."""
        return "".join(sorted(m.id[-1] for m in self.members.values() if m.state is state and m not in self.made))

    def effects(self, kind: type) -> str:
        return "".join(sorted(e.id[-1] for e in self.decision.effects if isinstance(e, kind)))

    def codes(self) -> set[str]:
        return {r.code.value for r in self.decision.reasons}


def after(
    members: list[Instance],
    *events: Event,
    size: int = 0,
    group: Group | None = None,
    observed: dict[str, Observation] | None = None,
    policy: Policy | None = None,
    now: float = NOW,
    **view: Any,
) -> After:
    """Decide. Running members without an observation are healthy."""
    known = {m.id: healthy() for m in members if m.state in (State.RUNNING, State.DRAINING)}
    known |= {name(letter): f for letter, f in (observed or {}).items()}
    situation = View(
        **{
            "key": KEY,
            "desired": group or desired(size),
            "members": {m.id: m for m in members},
            "observations": known,
            "operator_seen": NOW,
            "listening_since": NOW - 10_000.0,
        }
        | view
    )
    policy = policy or Policy()
    decision = decide(situation, events, now=now, policy=policy, fresh_ids=fresh_ids())
    return After(situation, decision)
