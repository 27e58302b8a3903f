"""Records as canonical JSON, and back.

The journal outlives every version of this program, so an unknown field stops the reader instead of being dropped: an
older server must not lead over a newer one's records.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Cause, Change, Drain, Instance, Nonce, Put, Remove, State
from nstance.model.rollout import GroupRecord, Outcome, Revision

_T = TypeVar("_T")
# The journal keeps the name that a field was first stored under.
_STORED_AS = {"duplicate_vm": "double"}
_FIELD_OF = {stored: name for name, stored in _STORED_AS.items()}
_DEFAULTS = {f.name: f.default for f in fields(Instance)}


class UnknownRecordError(ValueError):
    """A record that a newer version or another program wrote. It is never skipped and never read as empty."""


def canonical(value: object) -> bytes:
    """The canonical JSON of a value: the input of hashes and checksums."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def encode_instance(instance: Instance) -> dict[str, Any]:
    """Fields with their default value are left out."""
    values = ((name, getattr(instance, name), default) for name, default in _DEFAULTS.items())
    return {
        _STORED_AS.get(name, name): _encode(value)
        for name, value, default in values
        if value != default and value != {}
    }


def _encode(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case Drain() | Nonce() | Revision():
            return {each.name: _encode(getattr(value, each.name)) for each in fields(value)}
        case Mapping():
            return dict(value)
        case _:
            return value


def decode_instance(raw: Mapping[str, Any]) -> Instance:
    if isinstance(raw, Mapping):
        raw = {_FIELD_OF.get(name, name): value for name, value in raw.items()}
    return _read(Instance, raw, _INSTANCE)


def _read(kind: Callable[..., _T], raw: Any, readers: Mapping[str, Callable[[Any], Any]]) -> _T:
    if not isinstance(raw, Mapping):
        raise UnknownRecordError(f"expected a record, found {type(raw).__name__}")
    unknown = raw.keys() - readers.keys()
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise UnknownRecordError(f"record has fields that this version does not know: {names}")
    try:
        return kind(**{name: readers[name](value) for name, value in raw.items()})
    except UnknownRecordError:
        raise
    except (TypeError, ValueError) as problem:
        raise UnknownRecordError(f"failed to read record: {problem}") from problem


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
        raise UnknownRecordError("expected an object of strings")
    return value


_text, _flag, _number = _exactly(str), _exactly(bool), _exactly(float, int)
_DRAIN = {"started": _number, "cause": Cause, "deadline": _number, "waits": _flag}
_NONCE = {"jti": _text, "issued": _exactly(int), "expires": _exactly(int)}
_INSTANCE: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("id", "tenant", "group", "template", "market", "instance_type", "subnet", "infra_hash"), _text),
    **dict.fromkeys(("request_hash", "ip4", "ip6", "hostname", "public_key", "certificate_serial", "message"), _text),
    "requester": _text,
    **dict.fromkeys(("replaces", "predecessor", "provider_id", "duplicate_vm"), _or_none(_text)),
    **dict.fromkeys(("on_demand", "own_type", "replace_wanted", "suspect", "seen", "vacant"), _flag),
    **dict.fromkeys(
        ("made", "registered", "ready_at", "certificate_expires", "ended", "drain_timeout"), _or_none(_number)
    ),
    **dict.fromkeys(("cause", "replaces_for"), _or_none(Cause)),
    "removal_rank": _or_none(_exactly(int)),
    "created": _number,
    "state": State,
    "vars": _texts,
    "drain": _or_none(lambda raw: _read(Drain, raw, _DRAIN)),
    "nonce": _or_none(lambda raw: _read(Nonce, raw, _NONCE)),
}
assert _INSTANCE.keys() == _DEFAULTS.keys(), "every field of a record needs a reader"


_REVISION: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("infra_hash", "runtime_hash", "by", "message"), _text),
    "started": _number,
    "outcome": Outcome,
    **dict.fromkeys(("finished", "paused_at", "resumed_at"), _or_none(_number)),
    "failures": _exactly(int),
}
assert _REVISION.keys() == {f.name for f in fields(Revision)}, "every field of a revision needs a reader"


def encode_group(record: GroupRecord) -> dict[str, Any]:
    return {
        "tenant": record.key.tenant,
        "group": record.key.name,
        "dynamic": record.dynamic,
        "revisions": [_encode(revision) for revision in record.revisions],
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
            raise UnknownRecordError("group record has a format that this version does not know")


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
            raise UnknownRecordError(f"change has a format that this version does not know: {', '.join(sorted(raw))}")
