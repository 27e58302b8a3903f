"""VMs with a shard's tags that no record of it knows."""

import datetime
from typing import Any

from grpclib.const import Status

from nstance.admin.client import Client, Refusal
from nstance.admin.shard.records import Record, age, moment
from nstance.model.ids import ShardId

COLUMNS = ("instance", "group", "state", "age", "provider_id", "notes")


async def everything(client: Client) -> list[Any]:
    """None from a server that is too old to know of them."""
    try:
        return list((await client.call("ListUnknownVms")).vms)
    except Refusal as refusal:
        if refusal.code is Status.UNIMPLEMENTED:
            return []
        raise


def record(shard: ShardId, vm: Any) -> Record:
    return {
        "shard": shard,
        "instance_id": vm.instance_id,
        "provider_id": vm.provider_id,
        "group": vm.group,
        "state": vm.state,
        "first_seen": moment(vm.first_seen_unix_ms),
        "created": moment(vm.created_unix_ms),
        "ipv4": vm.ipv4 or None,
        "ipv6": vm.ipv6 or None,
        "why": vm.why,
    }


def row(found: Record, *, now: float) -> Record:
    """The age is that of its ID."""
    born = datetime.datetime.fromisoformat(found["created"]).timestamp() if found["created"] else now
    return {
        "shard": found["shard"],
        "instance": found["instance_id"],
        "group": found["group"],
        "state": found["state"],
        "age": age(now - born),
        "provider_id": found["provider_id"],
        "notes": [found["why"]],
    }
