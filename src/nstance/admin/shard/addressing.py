"""Finds the one instance that a person means by an ID, or by its beginning or end.

The trap: it must be unique in all selected shards. If one of them does not answer, that cannot be said, and nothing
is done.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from grpclib.const import Status

from nstance.admin import errors
from nstance.admin.client import Client, ShardError
from nstance.admin.event_loop import run
from nstance.admin.shard import fanout, instances, unknown_vms
from nstance.admin.shard_flags import ShardSelection
from nstance.model import ids

MAX_CANDIDATES = 10

T = TypeVar("T")
ListIds = Callable[[Client], Awaitable[list[str]]]


async def known_ids(client: Client) -> list[str]:
    """Also of recently deleted ones: they can be shown."""
    return [each.instance_id for each in await instances.list_instances(client, deleted=True)]


async def unknown_vm_ids(client: Client) -> list[str]:
    return [each.instance_id for each in await unknown_vms.list_unknown_vms(client)]


def call_instance(
    selection: ShardSelection,
    text: str,
    work: Callable[[Client, str], Awaitable[T]],
    *,
    list_ids: ListIds = known_ids,
) -> fanout.Answers[T]:
    """Runs `work` with the whole ID in the shards that may have the instance. Raises CommandError if none has a result."""

    async def call() -> fanout.Answers[T]:
        async with fanout.open_clients(selection) as clients:
            id, chosen = await find(clients, text, list_ids=list_ids)
            answers = (await fanout.call_each(chosen, lambda client: work(client, id))).ignore_not_found()
            await fanout.renew_if_due(chosen, answers)
            return answers

    answers = run(call())
    if not answers.results:
        answers.check()
    return answers


async def find(clients: Sequence[Client], text: str, *, list_ids: ListIds = known_ids) -> tuple[str, Sequence[Client]]:
    """The whole ID, and the shards to ask. Raises CommandError."""
    if ids.is_instance_id(text):
        return text, clients
    answers = await fanout.call_each(clients, list_ids)
    answers.check()
    found = [
        (client, id)
        for client in clients
        for shard, listed in answers.results
        if shard == client.shard
        for id in instances.matching(listed, text)
    ]
    if not found:
        raise ShardError(f"no instance begins or ends with {text}; see `nstance-admin instance list`", Status.NOT_FOUND)
    if len(found) > 1:
        shown = ", ".join(id for _, id in found[:MAX_CANDIDATES])
        more = f" and {len(found) - MAX_CANDIDATES} more" if len(found) > MAX_CANDIDATES else ""
        raise errors.CommandError(f"{text} stands for {len(found)} instances: {shown}{more}; give more of the ID")
    [(client, id)] = found
    return id, [client]
