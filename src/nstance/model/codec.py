"""Records as canonical JSON, and back.

The journal outlives every version of this program, so a field that is not known stops the reader instead of being
dropped: an older server must not lead over a newer one's records.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Cause, Change, Drain, Instance, Nonce, Put, Remove, State
from nstance.model.rollout import GroupRecord, Outcome, Revision

_T = TypeVar("_T")
# The journal keeps a field's first name, whatever the field is called today.
_STORED_AS = {"duplicate_vm": "double"}
_FIELD_OF = {stored: name for name, stored in _STORED_AS.items()}
_DEFAULTS = {f.name: f.default for f in fields(Instance)}


class UnknownRecordError(ValueError):
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
        out[_STORED_AS.get(name, name)] = _plain(value)
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
    if not isinstance(raw, Mapping):
        return _read(Instance, raw, _INSTANCE)
    return _read(Instance, {_FIELD_OF.get(name, name): value for name, value in raw.items()}, _INSTANCE)


def _read(kind: Callable[..., _T], raw: Any, readers: Mapping[str, Callable[[Any], Any]]) -> _T:
    if not isinstance(raw, Mapping):
        raise UnknownRecordError(f"expected a record, found {type(raw).__name__}")
    unknown = raw.keys() - readers.keys()
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise UnknownRecordError(f"a record has fields that this version does not know: {names}")
    try:
        return kind(**{name: readers[name](value) for name, value in raw.items()})
    except (TypeError, ValueError) as problem:
        if isinstance(problem, UnknownRecordError):
            raise
        raise UnknownRecordError(f"a record cannot be read: {problem}") from problem


def _exactly(*kinds: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise UnknownRecordError(f"expected {kinds[0].__name__}, found {type(value).__name__}")
        return value

    return read


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(type(v) is str for v in value.values()):
        raise UnknownRecordError("expected texts by name, found something else")
    return value


_text, _flag, _number = _exactly(str), _exactly(bool), _exactly(float, int)
_DRAIN = {"started": _number, "cause": Cause, "deadline": _number, "waits": _flag}
_NONCE = {"jti": _text, "issued": _exactly(int), "expires": _exactly(int)}
_INSTANCE: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("id", "tenant", "group", "template", "instance_type", "subnet", "infra_hash"), _text),
    **dict.fromkeys(("request_hash", "ip4", "ip6", "hostname", "public_key", "certificate_serial", "message"), _text),
    **dict.fromkeys(("replaces", "predecessor", "provider_id", "duplicate_vm"), _or_none(_text)),
    **dict.fromkeys(("on_demand", "replace_wanted", "suspect", "seen", "vacant"), _flag),
    **dict.fromkeys(
        ("made", "registered", "ready_at", "certificate_expires", "ended", "drain_timeout"), _or_none(_number)
    ),
    **dict.fromkeys(("cause", "replaces_for"), _or_none(Cause)),
    "created": _number,
    "state": State,
    "vars": _texts,
    "drain": _or_none(lambda raw: _read(Drain, raw, _DRAIN)),
    "nonce": _or_none(lambda raw: _read(Nonce, raw, _NONCE)),
}
assert _INSTANCE.keys() == _DEFAULTS.keys(), "each field of a record needs its reader"


_REVISION: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("infra_hash", "runtime_hash", "by", "message"), _text),
    "started": _number,
    "outcome": Outcome,
    **dict.fromkeys(("finished", "paused_at", "resumed_at"), _or_none(_number)),
    "failures": _exactly(int),
}
assert _REVISION.keys() == {f.name for f in fields(Revision)}, "each field of a revision needs its reader"


def encode_group(record: GroupRecord) -> dict[str, Any]:
    return {
        "tenant": record.key.tenant,
        "group": record.key.name,
        "dynamic": record.dynamic,
        "revisions": [
            {f.name: getattr(r, f.name) for f in fields(Revision)} | {"outcome": r.outcome.value}
            for r in record.revisions
        ],
    }


def decode_group(raw: Mapping[str, Any]) -> GroupRecord:
    match raw:
        case {"tenant": str(tenant), "group": str(name), "dynamic": bool(dynamic), "revisions": list(revisions)}:
            return GroupRecord(
                key=GroupKey(TenantId(tenant), GroupName(name)),
                dynamic=dynamic,
                revisions=tuple(_read(Revision, each, _REVISION) for each in revisions),
            )
        case _:
            raise UnknownRecordError("a group record of a kind that this version does not know")


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
            raise UnknownRecordError(f"a change of a kind that this version does not know: {', '.join(sorted(raw))}")
