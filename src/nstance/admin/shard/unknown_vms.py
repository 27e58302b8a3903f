"""VMs with a shard's tags that have no record."""

from typing import Any

from grpclib.const import Status

from nstance.admin.client import Client, ShardError
from nstance.admin.shard.records import Record, age_since
from nstance.admin.shard.shapes import OPTIONAL, TEXT, TIME, Shape

COLUMNS = ("instance", "group", "state", "age", "provider_id", "notes")
UNKNOWN_VM = Shape(
    ("shard instance_id provider_id group state", TEXT),
    ("first_seen created", TIME),
    ("ipv4 ipv6", OPTIONAL),
    ("why", TEXT),
)


async def list_unknown_vms(client: Client) -> list[Any]:
    """Empty for a server that is too old to report them."""
    try:
        return list((await client.call("ListUnknownVms")).vms)
    except ShardError as error:
        if error.code is Status.UNIMPLEMENTED:
            return []
        raise


async def load_records(client: Client) -> list[Record]:
    return [UNKNOWN_VM.fill(each, shard=client.shard) for each in await list_unknown_vms(client)]


def row(found: Record, *, now: float) -> Record:
    """The age is that of its ID."""
    copied = {key: found[key] for key in ("shard", "group", "state", "provider_id")}
    age = age_since(found["created"], now) or "0s"
    return {**copied, "instance": found["instance_id"], "age": age, "notes": [found["why"]]}
