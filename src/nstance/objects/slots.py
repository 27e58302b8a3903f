"""The format of journal slots and snapshots.

Canonical JSON with a checksum over everything else. Unreadable data is never skipped and never read as empty: a flipped
bit, a truncated object or a newer version stops the reader with a message that names the object and the reason.

Each slot also holds the checksum of the slot before it, and a snapshot that of its slot. Servers do not read this chain:
`nstance-admin audit verify` does. Slots of older versions have no link.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nstance.model.codec import (
    UnknownRecordError,
    canonical,
    decode_change,
    decode_group,
    decode_instance,
    encode_change,
    encode_group,
    encode_instance,
)
from nstance.model.ids import GroupKey, InstanceId, TenantId
from nstance.model.instance import Change, Instance, Put, Remove
from nstance.model.rollout import GroupRecord

VERSION = 1
FIRST_LINK = "0" * 64  # of slot 1, which follows no slot
_FIRST = re.compile(rb'\{"at":(\d+(?:\.\d+)?),"')


class DamagedError(Exception):
    """The journal is damaged. No server leads with it, and nothing is deleted."""


@dataclass(frozen=True, slots=True)
class LoggedReason:
    code: str
    message: str
    instance: str = ""
    tenant: str = ""  # with the group, if the entry changes no record that names them
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """All record changes of one decision: atomic."""

    id: str
    reason: tuple[LoggedReason, ...] = ()
    changes: tuple[Change, ...] = ()
    groups: tuple[GroupRecord, ...] = ()  # their new state
    drainers: Mapping[TenantId, bool] = field(default_factory=dict)  # whether a tenant has a drainer
    more: bool = False  # a part of a decision that continues in the next slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    number: int
    epoch: int
    op: str
    at: float
    entries: tuple[Entry, ...]
    previous: str = ""  # the checksum of the slot before; empty in slots of older versions
    checksum: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole state after a slot."""

    number: int
    epoch: int
    at: float
    instances: Mapping[InstanceId, Instance]
    groups: Mapping[GroupKey, GroupRecord] = field(default_factory=dict)
    drainers: frozenset[TenantId] = frozenset()  # tenants that have a drainer
    head: str = ""  # the checksum of its slot; empty in snapshots of older versions


def apply(instances: dict[InstanceId, Instance], changes: Sequence[Change]) -> None:
    """The fold: the state of a shard is the result of all changes in order."""
    for change in changes:
        match change:
            case Put(instance):
                instances[instance.id] = instance
            case Remove(id):
                instances.pop(id, None)


def apply_groups(groups: dict[GroupKey, GroupRecord], records: Sequence[GroupRecord]) -> None:
    for record in records:
        if record.is_empty:
            groups.pop(record.key, None)
        else:
            groups[record.key] = record


def apply_drainers(tenants: set[TenantId], changes: Mapping[TenantId, bool]) -> None:
    for tenant, drains in changes.items():
        if drains:
            tenants.add(tenant)
        else:
            tenants.discard(tenant)


class Assembler:
    """Puts decisions together that are too large for one slot. A decision counts when its last part is durable. If its term
    ends before, the fence of the next one follows, and the parts are void."""

    def __init__(self) -> None:
        self._parts: list[Entry] = []

    @property
    def is_waiting(self) -> bool:
        """For the rest of a decision: the slots so far have parts that do not count yet."""
        return bool(self._parts)

    def add(self, slot: Slot) -> list[Entry]:
        """The decisions that are complete with this slot."""
        if not slot.entries:
            self._parts = []
        complete: list[Entry] = []
        for entry in slot.entries:
            if self._parts and self._parts[0].id != entry.id:
                self._parts = []
            self._parts.append(entry)
            if not entry.more:
                complete.append(_join(self._parts))
                self._parts = []
        return complete


def _join(parts: Sequence[Entry]) -> Entry:
    if len(parts) == 1:
        return parts[0]
    return Entry(
        id=parts[0].id,
        reason=tuple(why for part in parts for why in part.reason),
        changes=tuple(change for part in parts for change in part.changes),
        groups=tuple(group for part in parts for group in part.groups),
        drainers={tenant: drains for part in parts for tenant, drains in part.drainers.items()},
    )


def divide(entries: Sequence[Entry], count: int) -> list[Sequence[Entry]]:
    """About `count` slots' worth of decisions, or of parts of a single one. Just one if it cannot be divided."""
    if len(entries) > 1:
        return _chunks(entries, count)
    [entry] = entries
    about = next((change.instance.key for change in entry.changes if isinstance(change, Put)), None)
    reasons = entry.reason
    if about is not None:  # a part may have reasons and no record that names the group
        reasons = tuple(
            why if why.tenant else replace(why, tenant=about.tenant, group=about.name) for why in entry.reason
        )
    units: list[Entry] = [
        *(Entry(id=entry.id, changes=(change,)) for change in entry.changes),
        *(Entry(id=entry.id, groups=(group,)) for group in entry.groups),
        *(Entry(id=entry.id, drainers={tenant: drains}) for tenant, drains in entry.drainers.items()),
        *(Entry(id=entry.id, reason=(why,)) for why in reasons),
    ]
    if len(units) < 2:
        return [entries]
    parts = [replace(_join(chunk), more=True) for chunk in _chunks(units, count)]
    parts[-1] = replace(parts[-1], more=entry.more)
    return [[part] for part in parts]


def _chunks(items: Sequence[Entry], count: int) -> list[Sequence[Entry]]:
    size = -(-len(items) // count)
    return [items[start : start + size] for start in range(0, len(items), size)]


def estimate_size(entry: Entry) -> int:
    """About how many bytes it has in a slot."""
    reasons = sum(100 + len(why.message) for why in entry.reason)
    texts = sum(
        len(text)
        for change in entry.changes
        if isinstance(change, Put)
        for text in (change.instance.message, *change.instance.vars.values())
    )
    return 200 + 700 * len(entry.changes) + texts + 2500 * len(entry.groups) + reasons


def encode_entry(entry: Entry) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "id": entry.id,
        "reason": [_encode_why(w) for w in entry.reason],
        "changes": [encode_change(c) for c in entry.changes],
    } | ({"groups": [encode_group(g) for g in entry.groups]} if entry.groups else {})
    encoded |= {"drainers": dict(entry.drainers)} if entry.drainers else {}
    return encoded | ({"more": True} if entry.more else {})


def _encode_why(why: LoggedReason) -> dict[str, str]:
    about = {"tenant": why.tenant, "group": why.group} if why.tenant else {}
    return {"code": why.code, "message": why.message, "instance": why.instance} | about


def seal_slot(
    *, number: int, epoch: int, op: str, at: float, entries: Sequence[Mapping[str, Any]], previous: str
) -> tuple[bytes, str]:
    """The slot and its checksum. `entries` come from `encode_entry`."""
    value = {"v": VERSION, "slot": number, "epoch": epoch, "op": op, "at": at, "entries": list(entries)}
    return _sealed(value | ({"previous": previous} if previous else {}))


def decode_slot(number: int, body: bytes) -> Slot:
    raw, checksum = _opened(f"journal slot {number}", body)
    try:
        if raw["slot"] != number:
            raise DamagedError(f"journal slot {number} contains slot {raw['slot']}")
        return Slot(
            number=number,
            epoch=int(raw["epoch"]),
            op=str(raw["op"]),
            at=float(raw["at"]),
            previous=str(raw.get("previous", "")),
            checksum=checksum,
            entries=tuple(
                Entry(
                    id=str(e["id"]),
                    reason=tuple(
                        LoggedReason(w["code"], w["message"], w["instance"], w.get("tenant", ""), w.get("group", ""))
                        for w in e["reason"]
                    ),
                    changes=tuple(decode_change(c) for c in e["changes"]),
                    groups=tuple(decode_group(g) for g in e.get("groups", ())),
                    drainers={TenantId(str(t)): bool(drains) for t, drains in e.get("drainers", {}).items()},
                    more=bool(e.get("more", False)),
                )
                for e in raw["entries"]
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise DamagedError(f"journal slot {number}: {_explain(problem)}") from problem


def snapshot_pieces(snapshot: Snapshot, *, op: str) -> Iterator[bytes]:
    """The parts of a snapshot, one per instance, so that a leader with thousands of them can do other work in between.
    Together they are canonical JSON with a checksum."""
    first = (
        {"at": snapshot.at, "epoch": snapshot.epoch}
        | ({"groups": [encode_group(g) for _, g in sorted(snapshot.groups.items())]} if snapshot.groups else {})
        | ({"drainers": sorted(snapshot.drainers)} if snapshot.drainers else {})
        | ({"head": snapshot.head} if snapshot.head else {})
    )
    head = canonical(first)[:-1] + b',"instances":['
    last: dict[str, Any] = {"op": op, "slot": snapshot.number, "v": VERSION}
    checksum = hashlib.sha256(head)
    yield head
    for position, (_, instance) in enumerate(sorted(snapshot.instances.items())):
        piece = (b"," if position else b"") + canonical(encode_instance(instance))
        checksum.update(piece)
        yield piece
    checksum.update(b"]," + canonical(last)[1:])
    yield b"]," + canonical(last | {"sha256": checksum.hexdigest()})[1:]


def decode_snapshot(number: int, body: bytes) -> Snapshot:
    raw, _ = _opened(f"snapshot {number}", body)
    try:
        if raw["slot"] != number:
            raise DamagedError(f"snapshot {number} contains snapshot {raw['slot']}")
        instances = (decode_instance(i) for i in raw["instances"])
        groups = (decode_group(g) for g in raw.get("groups", ()))
        return Snapshot(
            number=number,
            epoch=int(raw["epoch"]),
            at=float(raw["at"]),
            instances={i.id: i for i in instances},
            groups={g.key: g for g in groups},
            drainers=frozenset(TenantId(str(tenant)) for tenant in raw.get("drainers", ())),
            head=str(raw.get("head", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise DamagedError(f"snapshot {number}: {_explain(problem)}") from problem


def claimed_time(number: int, body: bytes) -> float:
    """The time in a snapshot, read without parsing the rest: good enough to keep the snapshot, not to rely on it."""
    try:
        first = _FIRST.match(body)
        return float(first[1]) if first is not None else float(json.loads(body)["at"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
        raise DamagedError(f"snapshot {number} has no time: {problem!r}") from problem


def _sealed(value: dict[str, Any]) -> tuple[bytes, str]:
    checksum = hashlib.sha256(canonical(value)).hexdigest()
    return canonical(value | {"sha256": checksum}), checksum


def _opened(what: str, body: bytes) -> tuple[dict[str, Any], str]:
    """The content and its checksum."""
    try:
        raw = json.loads(body)
        checksum = raw.pop("sha256")
        version = raw["v"]
        found = hashlib.sha256(canonical(raw)).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise DamagedError(f"{what} is not valid ({len(body)} bytes): {problem!r}") from problem
    if found != checksum:
        raise DamagedError(f"{what} has a wrong checksum: it was changed or damaged")
    if version != VERSION:
        raise DamagedError(f"{what} has version {version}, this program supports version {VERSION}: upgrade it")
    return dict(raw), found


def _explain(problem: Exception) -> str:
    return str(problem) if isinstance(problem, UnknownRecordError) else f"unexpected content: {problem!r}"
