"""Objects of a journal as tests write them: keys and bodies."""

from collections.abc import Mapping, Sequence
from typing import Any

from nstance.config import storage_keys
from nstance.model.ids import ShardId
from nstance.objects import slots
from nstance.objects.port import Key


def slot_key(shard: ShardId, number: int) -> Key:
    return Key(f"{storage_keys.journal_prefix(shard)}{number:020}.json")


def snapshot_key(shard: ShardId, number: int) -> Key:
    return Key(f"{storage_keys.snapshot_prefix(shard)}{number:020}.json")


def slot_body(
    *, number: int, epoch: int, op: str, at: float, entries: Sequence[Mapping[str, Any]], previous: str = ""
) -> bytes:
    """`entries` come from `slots.encode_entry`."""
    return slots.seal_slot(number=number, epoch=epoch, op=op, at=at, entries=entries, previous=previous)[0]


def snapshot_body(snapshot: slots.Snapshot, *, op: str) -> bytes:
    return b"".join(slots.snapshot_pieces(snapshot, op=op))
