"""Journal slots and snapshots as bytes.

Canonical JSON with a checksum over everything else. What cannot be read is never skipped and never read as empty: a flipped
bit, a truncated object or a newer version stops the reader with a sentence that says which object and why.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.model.codec import UnknownRecord, canonical, decode_change, decode_instance, encode_change, encode_instance
from nstance.model.ids import InstanceId
from nstance.model.instance import Change, Instance, Put, Remove

VERSION = 1


class Damaged(Exception):
    """The journal cannot be trusted as it is. Nobody leads on it; nothing is deleted."""


@dataclass(frozen=True, slots=True)
class Why:
    code: str
    message: str
    instance: str = ""
    tenant: str = ""  # with the group, where the entry changes no record that would name them
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """All record changes of one decision: atomic."""

    id: str
    reason: tuple[Why, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    number: int
    epoch: int
    op: str
    at: float
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole state after a slot."""

    number: int
    epoch: int
    at: float
    instances: Mapping[InstanceId, Instance]


def apply(instances: dict[InstanceId, Instance], changes: Sequence[Change]) -> None:
    """The fold: the state of a shard is what all changes, in order, make of nothing."""
    for change in changes:
        match change:
            case Put(instance):
                instances[instance.id] = instance
            case Remove(id):
                instances.pop(id, None)


def encode_entry(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "reason": [_encode_why(w) for w in entry.reason],
        "changes": [encode_change(c) for c in entry.changes],
    }


def _encode_why(why: Why) -> dict[str, str]:
    about = {"tenant": why.tenant, "group": why.group} if why.tenant else {}
    return {"code": why.code, "message": why.message, "instance": why.instance} | about


def encode_slot(*, number: int, epoch: int, op: str, at: float, entries: Sequence[Mapping[str, Any]]) -> bytes:
    """`entries` as `encode_entry` makes them."""
    return _sealed({"v": VERSION, "slot": number, "epoch": epoch, "op": op, "at": at, "entries": list(entries)})


def decode_slot(number: int, body: bytes) -> Slot:
    raw = _opened(f"journal slot {number}", body)
    try:
        if raw["slot"] != number:
            raise Damaged(f"journal slot {number} says that it is slot {raw['slot']}")
        return Slot(
            number=number,
            epoch=int(raw["epoch"]),
            op=str(raw["op"]),
            at=float(raw["at"]),
            entries=tuple(
                Entry(
                    id=str(e["id"]),
                    reason=tuple(
                        Why(w["code"], w["message"], w["instance"], w.get("tenant", ""), w.get("group", ""))
                        for w in e["reason"]
                    ),
                    changes=tuple(decode_change(c) for c in e["changes"]),
                )
                for e in raw["entries"]
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise Damaged(f"journal slot {number}: {_explain(problem)}") from problem


def encode_snapshot(snapshot: Snapshot, *, op: str) -> bytes:
    return _sealed(
        {
            "v": VERSION,
            "slot": snapshot.number,
            "epoch": snapshot.epoch,
            "op": op,
            "at": snapshot.at,
            "instances": [encode_instance(i) for _, i in sorted(snapshot.instances.items())],
        }
    )


def decode_snapshot(number: int, body: bytes) -> Snapshot:
    raw = _opened(f"snapshot {number}", body)
    try:
        if raw["slot"] != number:
            raise Damaged(f"snapshot {number} says that it is snapshot {raw['slot']}")
        instances = (decode_instance(i) for i in raw["instances"])
        return Snapshot(
            number=number, epoch=int(raw["epoch"]), at=float(raw["at"]), instances={i.id: i for i in instances}
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise Damaged(f"snapshot {number}: {_explain(problem)}") from problem


def claimed_time(number: int, body: bytes) -> float:
    """When a snapshot says that it was taken. Quickly told, because nothing else of it is read: enough to leave it alone,
    not to rely on it."""
    try:
        return float(json.loads(body)["at"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
        raise Damaged(f"snapshot {number} does not say when it was taken: {problem!r}") from problem


def _sealed(value: dict[str, Any]) -> bytes:
    return canonical(value | {"sha256": hashlib.sha256(canonical(value)).hexdigest()})


def _opened(what: str, body: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(body)
        checksum = raw.pop("sha256")
        version = raw["v"]
        found = hashlib.sha256(canonical(raw)).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise Damaged(f"{what} is not readable JSON of ours ({len(body)} bytes): {problem!r}") from problem
    if found != checksum:
        raise Damaged(f"{what} does not have the checksum it was written with: it was changed or damaged")
    if version != VERSION:
        raise Damaged(f"{what} has version {version}, this program knows version {VERSION}: upgrade it")
    return dict(raw)


def _explain(problem: Exception) -> str:
    return str(problem) if isinstance(problem, UnknownRecord) else f"unexpected content: {problem!r}"
