"""Events that wait for the shard's next decision, by group."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from nstance.clock import Clock
from nstance.model import events as ev
from nstance.model.decision import Rejection
from nstance.model.ids import GroupKey
from nstance.objects import journal
from nstance.server.state.shard_state import ShardState

log = logging.getLogger(__name__)

MAX_WAITING = 200_000


class OverloadedError(Exception):
    """The inbox is full: come back later."""


class ShardFailedError(Exception):
    """Something that follows a decision failed by a bug. Records and effects may disagree now, so the term must end: the
    next one derives everything from the journal again."""


@dataclass(slots=True)
class Item:
    event: ev.Event
    posted: float
    answer: asyncio.Future[Rejection | None] | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether its sender no longer waits for the answer."""
        return self.answer is not None and self.answer.cancelled()

    def reply(self, rejection: Rejection | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(rejection)

    def fail(self, problem: BaseException) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(problem)


Batch = dict[GroupKey, list[Item]]


class Inbox:
    def __init__(self, state: ShardState, clock: Clock) -> None:
        self.failure: ShardFailedError | None = None
        self._state = state
        self._clock = clock
        self._items: Batch = {}
        self._waiting = 0
        self._wake = asyncio.Event()
        self._closed = False

    def post(self, event: ev.Event, *, key: GroupKey | None = None) -> None:
        """`key`: the group, where the event names no known instance."""
        target = key if key is not None else self._key_of(event)
        if target is not None:
            self._put(target, Item(event, self._clock.monotonic()))

    async def ask(self, event: ev.Event, *, key: GroupKey | None = None) -> Rejection | None:
        """Post the event and wait until what follows from it is durable. Raises DeposedError and OverloadedError."""
        target = key if key is not None else self._key_of(event)
        if target is None:
            return Rejection.UNKNOWN
        if self._waiting >= MAX_WAITING:
            raise OverloadedError("the shard is overloaded, try again")
        if self._closed:
            raise deposed()
        answer: asyncio.Future[Rejection | None] = asyncio.get_running_loop().create_future()
        self._put(target, Item(event, self._clock.monotonic(), answer))
        return await answer

    def look_again(self, keys: Iterable[GroupKey] | None = None) -> None:
        """Decide again about these groups; None: about all."""
        for key in self._state.keys() if keys is None else keys:
            self.post(ev.GroupChanged(), key=key)

    def fail(self, action: str, problem: Exception) -> None:
        """End the term: the next `take` raises."""
        log.error("failed to %s, the term ends", action, exc_info=problem)
        if self.failure is None:
            self.failure = ShardFailedError(f"failed to {action}: {problem!r}")
            self.failure.__cause__ = problem
            self._wake.set()

    async def wait(self) -> None:
        await self._wake.wait()

    def take(self) -> Batch:
        """All that waits. Raises ShardFailedError."""
        if self.failure is not None:
            raise self.failure
        self._wake.clear()
        batch, self._items, self._waiting = self._items, {}, 0
        return batch

    def close(self, undecided: Batch) -> None:
        """Nothing is decided any more: those that wait for an answer get one."""
        self._closed = True
        for items in (*undecided.values(), *self._items.values()):
            fail_deposed(items)

    def _put(self, key: GroupKey, item: Item) -> None:
        items = self._items.setdefault(key, [])
        if item.answer is None and items and items[-1].event == item.event:
            return  # the same event twice in a row changes nothing
        items.append(item)
        self._waiting += 1
        self._wake.set()

    def _key_of(self, event: ev.Event) -> GroupKey | None:
        id = getattr(event, "id", None)
        instance = self._state.instances.get(id) if id is not None else None
        return instance.key if instance is not None else None


def deposed() -> journal.DeposedError:
    return journal.DeposedError("this server stopped leading")


def fail_deposed(items: Iterable[Item], problem: BaseException | None = None) -> None:
    for item in items:
        item.fail(problem or deposed())
