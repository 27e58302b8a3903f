"""Records as canonical JSON, and back.

The journal outlives every version of this program, so a field that is not known stops the reader instead of being
dropped: an older server must not lead over a newer one's records.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from nstance.model.ids import GroupName, InstanceId, ProviderId, TenantId
from nstance.model.instance import Cause, Change, Drain, Instance, Nonce, Put, Remove, State

_FIELDS = {f.name: f for f in fields(Instance)}
_DEFAULTS = {name: f.default for name, f in _FIELDS.items()}


class UnknownRecord(ValueError):
    """Written by something newer, or not by us. Never skipped, never read as empty."""


def canonical(value: object) -> bytes:
    """The one spelling of a JSON value: what hashes and checksums are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def encode_instance(instance: Instance) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(instance, name)
        if value == default or value == {}:
            continue
        out[name] = _plain(value)
    return out


def _plain(value: Any) -> Any:
    match value:
        case State() | Cause():
            return value.value
        case Drain():
            return {
                "started": value.started,
                "cause": value.cause.value,
                "deadline": value.deadline,
                "waits": value.waits,
            }
        case Nonce():
            return {"jti": value.jti, "issued": value.issued, "expires": value.expires}
        case Mapping():
            return dict(value)
        case _:
            return value


def decode_instance(raw: Mapping[str, Any]) -> Instance:
    unknown = raw.keys() - _FIELDS.keys()
    if unknown:
        raise UnknownRecord(
            f"an instance record has fields that this version does not know: {', '.join(sorted(unknown))}"
        )
    values = dict(raw)
    try:
        values["id"] = InstanceId(values["id"])
        values["tenant"] = TenantId(values["tenant"])
        values["group"] = GroupName(values["group"])
        values["state"] = State(values["state"])
        for name in ("cause", "replaces_for"):
            if values.get(name) is not None:
                values[name] = Cause(values[name])
        if "provider_id" in values:
            values["provider_id"] = ProviderId(values["provider_id"])
        if (drain := values.get("drain")) is not None:
            values["drain"] = Drain(
                started=drain["started"], cause=Cause(drain["cause"]), deadline=drain["deadline"], waits=drain["waits"]
            )
        if (nonce := values.get("nonce")) is not None:
            values["nonce"] = Nonce(jti=nonce["jti"], issued=nonce["issued"], expires=nonce["expires"])
        return Instance(**values)
    except (KeyError, TypeError, ValueError) as problem:
        raise UnknownRecord(f"an instance record cannot be read: {problem!r}") from problem


def encode_change(change: Change) -> dict[str, Any]:
    match change:
        case Put(instance):
            return {"put": encode_instance(instance)}
        case Remove(id):
            return {"remove": id}


def decode_change(raw: Mapping[str, Any]) -> Change:
    match raw:
        case {"put": dict(record)} if len(raw) == 1:
            return Put(decode_instance(record))
        case {"remove": str(id)} if len(raw) == 1:
            return Remove(InstanceId(id))
        case _:
            raise UnknownRecord(f"a change of a kind that this version does not know: {', '.join(sorted(raw))}")
