"""Events of several shards: the latest ones, then new ones as they happen.

All servers of a shard give an event the same ID, and later ones higher IDs, so following means to ask for events after the
last ID. The traps: an unreachable shard must neither end the following nor be ignored silently. And times come from the
leaders' clocks, so the order within a shard is that of the IDs.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.admin import errors
from nstance.admin.client import Client
from nstance.admin.shard.records import EVENT, Record
from nstance.admin.shard.shapes import Shape
from nstance.clock import Clock
from nstance.model.ids import ShardId
from nstance.tasks import background

POLL_SECONDS = 0.5
PAGE = 500
MAX_QUEUED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    group: str = ""
    instance: str = ""
    limit: int = 100  # the newest ones to start with
    reasons: Sequence[str] = ()  # only of these; none: all
    numbered: bool = False  # records have the IDs of the events


async def latest(client: Client, query: EventQuery) -> Sequence[Any]:
    """At least one, even for limit 0: following starts after it."""
    return await _list(client, query, limit=max(1, query.limit))


async def after(client: Client, query: EventQuery, id: int) -> Sequence[Any]:
    """The next ones after an ID, at most PAGE."""
    return await _list(client, query, after_id=max(1, id), limit=PAGE)


async def _list(client: Client, query: EventQuery, **fields: int) -> Sequence[Any]:
    chosen = {"reasons": query.reasons} if query.reasons else {}
    answer = await client.call("ListEvents", group=query.group, instance_id=query.instance, **chosen, **fields)
    found: Sequence[Any] = answer.events
    return found


def merge_events(shards: Sequence[tuple[ShardId, Sequence[Any]]], *, limit: int, shape: Shape = EVENT) -> list[Record]:
    """The newest `limit` of all, oldest first. Each shard's events keep their order, also if its clock went back."""
    found = []
    for shard, events in shards:
        newest = 0
        for each in events:
            newest = max(newest, each.time_unix_ms)
            found.append((newest, shard, each))
    found.sort(key=lambda entry: entry[:2])
    return [shape.fill(each, shard=shard) for _, shard, each in found[max(0, len(found) - limit) :]]


async def follow(
    clients: Sequence[Client],
    query: EventQuery,
    *,
    after: dict[ShardId, int],
    on_status: Callable[[ShardId, str], None],
    clock: Clock,
) -> AsyncGenerator[tuple[int, Record], None]:
    """Yields events after the given IDs, each with its own ID, forever. A shard without an ID, because it did not answer
    yet, starts with its newest `query.limit`. `on_status` is called when a shard stops and resumes answering."""
    queue: asyncio.Queue[tuple[int, Record] | Exception] = asyncio.Queue(MAX_QUEUED)

    async def watch(client: Client) -> None:
        try:
            await poll(client)
        except Exception as bug:
            await queue.put(bug)

    async def poll(client: Client) -> None:
        is_known = client.shard in after
        last, is_failing, is_shown = after.get(client.shard, 0), False, is_known or query.limit > 0
        limit = PAGE if is_known else max(1, query.limit)
        while True:
            try:
                answer = await client.call(
                    "ListEvents", group=query.group, instance_id=query.instance, after_id=last, limit=limit
                )
            except errors.CommandError as error:
                if not is_failing:
                    on_status(client.shard, f"{errors.explain(error)}; retrying")
                is_failing = True
                await clock.sleep(2 * POLL_SECONDS)
                continue
            if is_failing:
                on_status(client.shard, "answers again")
                is_failing = False
            for each in answer.events:
                last = max(last, each.id)
                if is_shown:
                    await queue.put((each.id, EVENT.fill(each, shard=client.shard)))
            limit, is_shown = PAGE, True
            if len(answer.events) < PAGE:
                await client.renew_if_due()
                await clock.sleep(POLL_SECONDS)

    async with background.running(map(watch, clients)):
        while True:
            entry = await queue.get()
            if isinstance(entry, Exception):
                raise entry
            yield entry
