"""Events of several shards: the latest, then those that come.

Their IDs grow over changes of leaders, so whoever follows asks for what came after the last one seen. The traps: an
unreachable shard must neither end the following nor be passed over in silence; and a standby numbers what it read along
by its own time, so the last moments of a leader may come again from the next one.
"""

import asyncio
from collections import deque
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
AGAIN_MS = 5_000  # so much later what a leader told last may be told again

Tell = Callable[[ShardId, str], None]
_Said = tuple[str, str, str, str]


async def latest(client: Client, *, group: str, instance: str = "", limit: int) -> Sequence[Any]:
    found: Sequence[Any] = (await client.call("ListEvents", group=group, instance_id=instance, limit=limit)).events
    return found


def merged(shards: Sequence[tuple[ShardId, Sequence[Any]]], *, limit: int) -> list[Record]:
    """Oldest first; the newest `limit` of all."""
    found = [(told.time_unix_ms, shard, told.id, told) for shard, events in shards for told in events]
    found.sort(key=lambda each: each[:3])
    return [event(shard, told) for _, shard, _, told in found[max(0, len(found) - limit) :]]


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
        lately: deque[tuple[int, _Said]] = deque(maxlen=PAGE)
        again: dict[_Said, int] = {}
        while True:
            try:
                answer = await client.call("ListEvents", group=group, instance_id=instance, after_id=last, limit=limit)
            except failures.Refused as problem:
                if not silent:
                    again = {said: at for at, said in lately}
                    tell(client.shard, f"{failures.explain(problem)}; trying on")
                silent = True
                await clock.sleep(2 * POLL_SECONDS)
                continue
            if silent:
                tell(client.shard, "answers again")
                silent = False
            for told in answer.events:
                last = max(last, told.id)
                said = (told.group, told.instance_id, told.reason, told.message)
                if abs(told.time_unix_ms - again.pop(said, -AGAIN_MS)) < AGAIN_MS:
                    continue
                if shown:
                    lately.append((told.time_unix_ms, said))
                    await queue.put((told.id, event(client.shard, told)))
            limit, shown = PAGE, True
            if len(answer.events) < PAGE:
                again.clear()
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
