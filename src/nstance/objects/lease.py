"""The shard's lease: one object that says who leads.

It is never deleted. The epoch grows by one at each change of leader; the sequence and operation ID change with every
write, so that no two versions are equal. Times are never compared between machines: the record says how *long* others
must see it unchanged, each by its own clock; `at` only continues the time by which ages are counted. Safety does not
depend on it (conditional writes and the journal's fence provide that); it decides how soon an unresponsive leader is
replaced.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from nstance.model.codec import canonical
from nstance.objects import errors, settle
from nstance.objects.port import Key, ObjectStore, Version

VERSION = 1


class BadLeaseError(Exception):
    """The lease object cannot be read. No server may lead until a person has repaired it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    server: str
    incarnation: str  # random, new at each start
    addresses: tuple[str, ...] = ()  # of the election port
    fingerprint: str = ""  # of its certificate key


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    epoch: int
    sequence: int
    op: str
    holder: Holder
    free: bool
    length: float  # non-members must see it unchanged for longer than this
    promise: float  # members must see it unchanged for as long as their promise
    members: tuple[Holder, ...] = ()
    crash_wait: float = 0.0  # members wait so long after the last heartbeat of a dead holder; 0: the promise
    tail: int = 0  # the journal is at least this long: a shorter one was damaged
    at: float = 0.0  # the shard's time, by the holder's steady clock


@dataclass(frozen=True, slots=True)
class ReadLease:
    lease: Lease
    version: Version


def encode(lease: Lease) -> bytes:
    raw = asdict(lease)
    raw["state"] = "free" if raw.pop("free") else "held"
    return canonical(raw | {"v": VERSION})


def decode(body: bytes) -> Lease:
    try:
        raw = json.loads(body)
        canonical(raw)  # Nstance writes no NaN and no lone surrogates
        if raw["v"] != VERSION:
            raise BadLeaseError(
                f"the lease has version {raw['v']}, this program supports version {VERSION}: upgrade it"
            )
        if raw["state"] not in ("held", "free"):
            raise BadLeaseError(f"the lease has the unknown state {raw['state']!r}")
        return Lease(
            epoch=int(raw["epoch"]),
            sequence=int(raw["sequence"]),
            op=str(raw["op"]),
            holder=_read_holder(raw["holder"]),
            free=raw["state"] == "free",
            length=float(raw["length"]),
            promise=float(raw["promise"]),
            crash_wait=float(raw.get("crash_wait", 0.0)),
            members=tuple(_read_holder(m) for m in raw["members"]),
            tail=int(raw["tail"]),
            at=float(raw["at"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise BadLeaseError(
            f"the lease object cannot be read ({problem!r}); restore it or remove it by hand"
        ) from problem


def _read_holder(raw: dict[str, Any]) -> Holder:
    return Holder(
        server=str(raw["server"]),
        incarnation=str(raw["incarnation"]),
        addresses=tuple(str(a) for a in raw["addresses"]),
        fingerprint=str(raw["fingerprint"]),
    )


async def read(store: ObjectStore, key: Key) -> ReadLease | None:
    """The current lease; None only if the store says that there is none."""
    try:
        stored = await store.get(key)
    except errors.NotFoundError:
        return None
    except errors.ObjectTooLargeError as problem:
        raise BadLeaseError(
            f"the lease object cannot be read ({problem}); restore it or remove it by hand"
        ) from problem
    return ReadLease(decode(stored.body), stored.version)


async def write(
    store: ObjectStore,
    key: Key,
    lease: Lease,
    *,
    seen: Version | None,
    timeout: Callable[[], float],
    retry: settle.Retry,
) -> Version:
    intended = settle.ConditionalWrite(key=key, body=encode(lease), op=lease.op, seen=seen)
    return await settle.write(store, intended, timeout=timeout, retry=retry)
