"""Several shards asked side by side.

One shard's failure never hides the others' answers: they are shown first, and the failure decides the exit code.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from grpclib.const import Status

from nstance.admin import client as clients
from nstance.admin import failures, output
from nstance.admin.client import Client, Refusal
from nstance.admin.reach import Reach
from nstance.admin.running import run
from nstance.clock import SystemClock
from nstance.model.ids import ShardId

T = TypeVar("T")


@dataclass(slots=True)
class Answers(Generic[T]):
    good: list[tuple[ShardId, T]] = field(default_factory=list)
    bad: list[tuple[ShardId, failures.Refused]] = field(default_factory=list)

    def forgive_absence(self) -> "Answers[T]":
        """For what lives in some shards only: where it is found, it does not matter that others do not have it."""
        if self.good:
            self.bad = [(shard, problem) for shard, problem in self.bad if not _absent(problem)]
        return self

    def check(self) -> None:
        """After the good ones were shown. One line for each shard that failed."""
        if not self.bad:
            return
        lines = [f"shard {shard}: {failures.explain(problem)}" for shard, problem in self.bad]
        for line in lines[:-1]:
            output.note(f"nstance-admin: {line}")
        raise failures.Refused(lines[-1])


def _absent(problem: failures.Refused) -> bool:
    return isinstance(problem, Refusal) and problem.code is Status.NOT_FOUND


def ask(reach: Reach, work: Callable[[Client], Awaitable[T]]) -> Answers[T]:
    """For a command: opens, asks, closes. Raises Refused if there is nothing to show."""

    async def whole() -> Answers[T]:
        async with opened(reach) as found:
            answers = await each(found, work)
            if answers.good:
                first = next(client for client in found if client.shard == answers.good[0][0])
                await first.renew_if_due()
            return answers

    answers = run(whole())
    if not answers.good:
        answers.check()
    return answers


@contextlib.asynccontextmanager
async def opened(reach: Reach) -> AsyncIterator[list[Client]]:
    clock = SystemClock()
    identity = clients.load(reach.identity, now=clock.wall())
    found = [
        Client(shard, reach.servers[shard], identity=identity, timeout=reach.timeout, clock=clock)
        for shard in reach.shards
    ]
    try:
        yield found
    finally:
        for client in found:
            client.close()


async def each(found: Iterable[Client], work: Callable[[Client], Awaitable[T]]) -> Answers[T]:
    answers: Answers[T] = Answers()

    async def one(client: Client) -> tuple[ShardId, T | failures.Refused]:
        try:
            return client.shard, await work(client)
        except failures.Refused as problem:
            return client.shard, problem

    for shard, answer in await asyncio.gather(*map(one, found)):
        if isinstance(answer, failures.Refused):
            answers.bad.append((shard, answer))
        else:
            answers.good.append((shard, answer))
    return answers
