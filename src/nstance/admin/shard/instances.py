"""Instances of one shard: all of them, page by page, because one answer holds only some thousands; and the end of a drain."""

from typing import Any

from grpclib.const import Status

from nstance.admin.client import Client, Refusal
from nstance.admin.shard import groups
from nstance.v1 import operator_pb2

PAGE = 2_000


async def everything(client: Client, *, group: str = "", deleted: bool = False) -> list[Any]:
    """Sorted by ID. Also of a group that is deleted, while some are there. Raises Refusal for one that nobody knows."""
    found: list[Any] = []
    while True:
        after = found[-1].instance_id if found else ""
        try:
            answer = await client.call(
                "ListInstances", group=group, include_deleted=deleted, after_id=after, limit=PAGE
            )
        except Refusal as refusal:
            if refusal.code is Status.NOT_FOUND:
                await groups.find(client, group)  # says which ones there are
            raise
        found += answer.instances
        if not answer.more:
            return found


async def say_drained(client: Client, id: str, *, dry_run: bool) -> Any:
    """Its status afterwards, or as it is. Raises Refusal for one that does not drain."""
    now = await client.call("GetInstanceStatus", instance_id=id)
    if now.state != "draining":
        raise Refusal(f"expected an instance that is draining, found {id} {now.state}", Status.FAILED_PRECONDITION)
    if dry_run:
        return now
    answer = await client.call("AcknowledgeDrained", instance_id=id)
    if not answer.accepted:  # it was faster
        raise Refusal(answer.message, Status.FAILED_PRECONDITION)
    return await client.call("GetInstanceStatus", instance_id=id)


def departure(status: Any) -> Any:
    return operator_pb2.PlannedAction(
        action="delete",
        instance_id=status.instance_id,
        reason=status.reason,
        message="it is said to be empty",
        group=status.group,
    )
