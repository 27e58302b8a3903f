"""Calls several shards in parallel.

The failure of one shard never hides the results of the others: results are printed first, then failures set the exit code.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from grpclib.const import Status

from nstance.admin import client as clients
from nstance.admin import errors, output
from nstance.admin.client import Client, ShardError
from nstance.admin.event_loop import run
from nstance.admin.shard_flags import ShardSelection
from nstance.clock import SystemClock
from nstance.model.ids import ShardId

T = TypeVar("T")
U = TypeVar("U")


@dataclass(slots=True)
class Answers(Generic[T]):
    results: list[tuple[ShardId, T]] = field(default_factory=list)
    failures: list[tuple[ShardId, errors.CommandError]] = field(default_factory=list)

    def ignore_not_found(self) -> "Answers[T]":
        """For objects that exist only in some shards: if one shard has it, it does not matter that others do not."""
        if self.results:
            self.failures = [(shard, error) for shard, error in self.failures if not _is_not_found(error)]
        return self

    def map(self, convert: Callable[[T], U]) -> "Answers[U]":
        return Answers([(shard, convert(result)) for shard, result in self.results], self.failures)

    def flatten(self) -> "Answers[Any]":
        """Of lists: each element by itself."""
        elements: list[tuple[ShardId, Any]] = []
        for shard, result in self.results:
            elements += [(shard, each) for each in result]  # type: ignore[attr-defined]
        return Answers(elements, self.failures)

    def check(self) -> None:
        """Call it after printing the results. Prints a line for each failed shard and raises CommandError."""
        if not self.failures:
            return
        lines = [f"shard {shard}: {errors.explain(error)}" for shard, error in self.failures]
        for line in lines[:-1]:
            output.note(f"nstance-admin: {line}")
        raise errors.CommandError(lines[-1])


def _is_not_found(error: errors.CommandError) -> bool:
    return isinstance(error, ShardError) and error.code is Status.NOT_FOUND


def call_shards(selection: ShardSelection, work: Callable[[Client], Awaitable[T]]) -> Answers[T]:
    """Runs `work` for each shard of a command. Raises CommandError if no shard has a result."""

    async def call() -> Answers[T]:
        async with open_clients(selection) as found:
            answers = await call_each(found, work)
            await renew_if_due(found, answers)
            return answers

    answers = run(call())
    if not answers.results:
        answers.check()
    return answers


@contextlib.asynccontextmanager
async def open_clients(selection: ShardSelection) -> AsyncIterator[list[Client]]:
    clock = SystemClock()
    identity = clients.load(selection.identity, now=clock.wall())
    found = [
        Client(shard, selection.servers[shard], identity=identity, timeout=selection.timeout, clock=clock)
        for shard in selection.shards
    ]
    try:
        yield [client.in_tenant(selection.tenant) for client in found] if selection.tenant else found
    finally:
        for client in found:
            client.close()


async def call_each(found: Iterable[Client], work: Callable[[Client], Awaitable[T]]) -> Answers[T]:
    answers: Answers[T] = Answers()

    async def call(client: Client) -> tuple[ShardId, T | errors.CommandError]:
        try:
            return client.shard, await work(client)
        except errors.CommandError as error:
            return client.shard, error

    for shard, result in await asyncio.gather(*map(call, found)):
        if isinstance(result, errors.CommandError):
            answers.failures.append((shard, result))
        else:
            answers.results.append((shard, result))
    return answers


async def renew_if_due(found: Iterable[Client], answers: Answers[Any]) -> None:
    """Renews the client certificate with the first shard that answered."""
    answered = {shard for shard, _ in answers.results}
    for client in found:
        if client.shard in answered:
            await client.renew_if_due()
            return
