"""VMs with a shard's tags that have no record."""

from typing import Any

from grpclib.const import Status

from nstance.admin.client import Client, ShardError
from nstance.admin.shard.records import Record, age_since, timestamp_ms
from nstance.model.ids import ShardId

COLUMNS = ("instance", "group", "state", "age", "provider_id", "notes")


async def list_unknown_vms(client: Client) -> list[Any]:
    """Empty for a server that is too old to report them."""
    try:
        return list((await client.call("ListUnknownVms")).vms)
    except ShardError as error:
        if error.code is Status.UNIMPLEMENTED:
            return []
        raise


def record(shard: ShardId, vm: Any) -> Record:
    return {
        "shard": shard,
        "instance_id": vm.instance_id,
        "provider_id": vm.provider_id,
        "group": vm.group,
        "state": vm.state,
        "first_seen": timestamp_ms(vm.first_seen_unix_ms),
        "created": timestamp_ms(vm.created_unix_ms),
        "ipv4": vm.ipv4 or None,
        "ipv6": vm.ipv6 or None,
        "why": vm.why,
    }


def row(found: Record, *, now: float) -> Record:
    """The age is that of its ID."""
    copied = {key: found[key] for key in ("shard", "group", "state", "provider_id")}
    age = age_since(found["created"], now) or "0s"
    return {**copied, "instance": found["instance_id"], "age": age, "notes": [found["why"]]}
