"""Instances of one shard: listing them page by page, new IDs, and the acknowledgment of a drain."""

import uuid
from collections.abc import Iterable
from typing import Any

from grpclib.const import Status

from nstance.admin import output
from nstance.admin.client import Client, ShardError
from nstance.admin.shard import groups
from nstance.clock import SystemRng
from nstance.model import ids
from nstance.v1 import operator_pb2

PAGE = 2_000


def new_uuid() -> str:
    """A UUIDv7. Repeating a call with the same one creates no second instance."""
    return str(uuid.UUID(int=ids.uuid7(int(output.now() * 1000), SystemRng().bits(74))))


async def list_instances(client: Client, *, group: str = "", deleted: bool = False) -> list[Any]:
    """Sorted by ID; also of a deleted group, while it has some. Raises ShardError for an unknown group."""
    found: list[Any] = []
    while True:
        after = found[-1].instance_id if found else ""
        try:
            answer = await client.call(
                "ListInstances", group=group, include_deleted=deleted, after_id=after, limit=PAGE
            )
        except ShardError as error:
            if error.code is Status.NOT_FOUND:
                await groups.find(client, group)  # its error names the groups that exist
            raise
        found += answer.instances
        if not answer.more:
            return found


def matching(found: Iterable[str], part: str) -> list[str]:
    """IDs that begin with the part, with or without their kind. If none does: IDs that end with it, because those that
    were made together begin alike."""
    listed = sorted(found)
    begin = [id for id in listed if id.startswith(part) or id.partition("-")[2].startswith(part)]
    return begin or [id for id in listed if id.endswith(part)]


async def acknowledge_drained(client: Client, id: str, *, dry_run: bool) -> Any:
    """The instance's status afterwards. Raises ShardError for one that is not draining."""
    status = await client.call("GetInstanceStatus", instance_id=id)
    if status.state != "draining":
        raise ShardError(f"expected a draining instance, found {id} {status.state}", Status.FAILED_PRECONDITION)
    if dry_run:
        return status
    answer = await client.call("AcknowledgeDrained", instance_id=id)
    if not answer.accepted:  # the drain ended in the meantime
        raise ShardError(answer.message, Status.FAILED_PRECONDITION)
    return await client.call("GetInstanceStatus", instance_id=id)


def planned_deletion(status: Any) -> Any:
    return operator_pb2.PlannedAction(
        action="delete",
        instance_id=status.instance_id,
        reason=status.reason,
        message="its drain is acknowledged",
        group=status.group,
    )
