"""What lies in a bucket: the lease, the journal, snapshots, the standbys' messages, and a store's own errors."""

import functools
import hashlib
import json
from typing import Any

from fuzz.law import Broken, target
from nstance.model.codec import canonical
from nstance.objects import errors, lease, s3, settle, slots
from nstance.server.election import peers
from support.journals import slot_body, snapshot_body

WORDS = (
    b'"v"',
    b'"op"',
    b'"epoch"',
    b'"entries"',
    b'"changes"',
    b'"put"',
    b'"remove"',
    b'"state"',
    b'"drain"',
    b'"nonce"',
    b'"vars"',
)


@target("lease", lease.BadLeaseError, words=(*WORDS, b'"holder"', b'"members"', b'"length"', b'"promise"', b'"tail"'))
def lease_object(data: bytes) -> None:
    settle.operation(data)
    found = lease.decode(data)
    if lease.decode(lease.encode(found)) != found:
        raise Broken("a lease does not survive being written")


def _sealed(data: bytes) -> bytes:
    """With a checksum that fits, where there is something to sum: otherwise nothing behind it would be reached."""
    try:
        raw: Any = json.loads(data)
        raw.pop("sha256", None)
        return canonical(raw | {"sha256": hashlib.sha256(canonical(raw)).hexdigest()})
    except (ValueError, AttributeError, TypeError, RecursionError):
        return data


@target("journal", slots.DamagedError, words=WORDS)
def journal_slot(data: bytes) -> None:
    settle.operation(data)
    try:
        slots.decode_slot(7, data)
    except slots.DamagedError:
        slot = slots.decode_slot(7, _sealed(data))
        instances: dict[Any, Any] = {}
        for entry in slot.entries:
            slots.apply(instances, entry.changes)
        encoded = [slots.encode_entry(entry) for entry in slot.entries]
        again = slot_body(number=7, epoch=slot.epoch, op=slot.op, at=slot.at, entries=encoded, previous=slot.previous)
        if slots.decode_slot(7, again) != slot:
            raise Broken("a slot does not survive being written") from None


@target("snapshot", slots.DamagedError, words=WORDS)
def snapshot(data: bytes) -> None:
    try:
        slots.decode_snapshot(7, data)
    except slots.DamagedError:
        found = slots.decode_snapshot(7, _sealed(data))
        if slots.decode_snapshot(7, snapshot_body(found, op="o")) != found:
            raise Broken("a snapshot does not survive being written") from None


@target(
    "peer",
    peers.BadMessageError,
    words=(b'"kind"', b'"heartbeat"', b'"join"', b'"addresses"', b'"epoch"', b'"promise"', b'"__class__"'),
)
def peer_message(data: bytes) -> None:
    found = peers.decode(data)
    if peers.decode(peers.encode(found)) != found:
        raise Broken("a message does not survive being sent")


@functools.cache
def _store() -> s3.S3Store:
    return s3.S3Store("bucket", endpoint="http://127.0.0.1:1", environment={})


@target(
    "s3-answer",
    errors.StorageError,
    words=(b"non-2xx status code: ", b"<Code>", b"</Code>", b"<Message>", b"NoSuchKey", b"kind: Connect,"),
)
def s3_answer(data: bytes) -> None:
    """What obstore says about a failed call. An error is never read as an absence: only one answer means that."""
    text = data.decode("utf-8", "replace")
    store = _store()
    for doing in (store._reading, store._writing):
        try:
            with doing("get key"):
                raise OSError(text)
        except errors.NotFoundError:
            if "404" not in text or "NoSuchKey" not in text:
                raise Broken("an error is read as an absence") from None
        except errors.StorageError as refused:
            last: errors.StorageError = refused
            continue
        return
    raise last
