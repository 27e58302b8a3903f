"""A shard itself: whether it answers, who leads it, and what its leader reports of it."""

from grpclib.const import Status

from nstance.admin.client import Client, ShardError
from nstance.admin.shard import records
from nstance.admin.shard.records import Record
from nstance.admin.shard.shapes import timestamp_ms


async def read(client: Client) -> Record | None:
    """None for a server that is too old to report it."""
    try:
        return records.CONTROL_PLANE.fill(await client.call("GetControlPlane"))
    except ShardError as error:
        if error.code is Status.UNIMPLEMENTED:
            return None
        raise


def shard_record(
    client: Client,
    control_plane: Record | None,
    *,
    config: Record | None,
    unknown_vms: int,
    read_at: float | None,
    problem: str | None = None,
) -> Record:
    """`problem`: why the shard does not answer."""
    return {
        "shard": client.shard,
        "reachable": problem is None,
        "error": problem,
        "tenant": client.identity.who.tenant,
        "control_plane": control_plane,
        "config": config,
        "unknown_vms": unknown_vms,
        "identity_expires": timestamp_ms(int(client.identity.expires * 1000)),
        "read_at": timestamp_ms(int((read_at or 0) * 1000)),
    }
