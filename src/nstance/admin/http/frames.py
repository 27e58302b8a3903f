"""Server-sent events as bytes, and the IDs of messages: how far every shard was read."""

import json
from collections.abc import Mapping

from nstance.admin.shard.records import Record
from nstance.model import ids
from nstance.model.ids import ShardId

Positions = Mapping[ShardId, int]  # the last event of each shard


def encode(document: Record) -> bytes:
    """Compact JSON in one line."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def frame(kind: str, body: bytes, positions: Positions | None = None) -> bytes:
    id = f"id: {format_positions(positions)}\n" if positions else ""
    return f"event: {kind}\n{id}data: ".encode() + body + b"\n\n"


def message(kind: str | None, record: Record, *, id: str | None = None) -> str:
    """JSON has no line ends, so one data line is enough."""
    head = (f"event: {kind}\n" if kind else "") + (f"id: {id}\n" if id else "")
    return f"{head}data: {json.dumps(record, ensure_ascii=False)}\n\n"


def format_positions(seen: Positions) -> str:
    return ",".join(f"{shard}={id}" for shard, id in sorted(seen.items()))


def parse_positions(text: str) -> dict[ShardId, int]:
    """Ignores what is not ours."""
    found: dict[ShardId, int] = {}
    for part in text.split(","):
        shard, _, id = part.partition("=")
        if ids.is_name(shard) and id.isascii() and id.isdigit() and len(id) < 20 and int(id) < 1 << 63:
            found[ShardId(shard)] = int(id)
    return found
