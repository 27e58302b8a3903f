"""Events of several shards: the latest, then those that come.

Every server of a shard gives an event the same ID, and later ones higher IDs, so whoever follows asks for what came after
the last one seen. The traps: an unreachable shard must neither end the following nor be passed over in silence; and the
times are those of the leaders' clocks, so a shard's own order is that of the IDs.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from nstance.admin import failures
from nstance.admin.client import Client
from nstance.admin.shard.records import Record, event
from nstance.clock import Clock
from nstance.model.ids import ShardId

POLL_SECONDS = 0.5
PAGE = 500
WAITING = 1_000

Tell = Callable[[ShardId, str], None]


async def latest(client: Client, *, group: str, instance: str = "", limit: int) -> Sequence[Any]:
    found: Sequence[Any] = (await client.call("ListEvents", group=group, instance_id=instance, limit=limit)).events
    return found


def merged(shards: Sequence[tuple[ShardId, Sequence[Any]]], *, limit: int) -> list[Record]:
    """Oldest first; the newest `limit` of all. Each shard's in their own order, also if a clock went back."""
    found = []
    for shard, events in shards:
        latest = 0
        for told in events:
            latest = max(latest, told.time_unix_ms)
            found.append((latest, shard, told))
    found.sort(key=lambda each: each[:2])
    return [event(shard, told) for _, shard, told in found[max(0, len(found) - limit) :]]


async def follow(
    found: Sequence[Client],
    *,
    after: dict[ShardId, int],
    begin: int,
    group: str,
    instance: str = "",
    tell: Tell,
    clock: Clock,
) -> AsyncGenerator[tuple[int, Record], None]:
    """Events after the given IDs, for ever, each with its own; of a shard that has none yet, because it did not answer,
    from its newest `begin` on. `tell` hears when a shard stops answering and when it answers again."""
    queue: asyncio.Queue[tuple[int, Record] | Exception] = asyncio.Queue(WAITING)

    async def watch(client: Client) -> None:
        try:
            await _watch(client)
        except Exception as bug:
            await queue.put(bug)

    async def _watch(client: Client) -> None:
        last, silent, shown = after.get(client.shard, 0), False, client.shard in after or begin > 0
        limit = PAGE if client.shard in after else max(1, begin)
        while True:
            try:
                answer = await client.call("ListEvents", group=group, instance_id=instance, after_id=last, limit=limit)
            except failures.Refused as problem:
                if not silent:
                    tell(client.shard, f"{failures.explain(problem)}; trying on")
                silent = True
                await clock.sleep(2 * POLL_SECONDS)
                continue
            if silent:
                tell(client.shard, "answers again")
                silent = False
            for told in answer.events:
                last = max(last, told.id)
                if shown:
                    await queue.put((told.id, event(client.shard, told)))
            limit, shown = PAGE, True
            if len(answer.events) < PAGE:
                await client.renew_if_due()
                await clock.sleep(POLL_SECONDS)

    watchers = [asyncio.create_task(watch(client)) for client in found]
    try:
        while True:
            coming = await queue.get()
            if isinstance(coming, Exception):
                raise coming
            yield coming
    finally:
        for each in watchers:
            each.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
