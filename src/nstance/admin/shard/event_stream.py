"""Prints the newest events of shards, then new ones as they happen: for `events` and `instance logs`."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from nstance.admin import errors, output
from nstance.admin.client import Client
from nstance.admin.event_loop import run
from nstance.admin.shard import addressing, fanout, groups, history
from nstance.admin.shard.event_printer import CONSOLE, Printer
from nstance.admin.shard.history import EventQuery
from nstance.admin.shard_flags import ShardSelection
from nstance.clock import SystemClock
from nstance.model import ids

Answers = fanout.Answers[Sequence[Any]]


def show(selection: ShardSelection, query: EventQuery, *, follow: bool) -> None:
    """`query.instance` may be a part of an ID. Raises CommandError."""
    try:
        run(_show(selection, query, follow=follow)).check()
    except KeyboardInterrupt:
        if not follow:
            raise


def show_console(selection: ShardSelection, instance: str) -> None:
    """The console output that the server kept, as it is except for control characters. Raises CommandError."""

    async def load(client: Client, id: str) -> Sequence[Any]:
        return await _load(client, EventQuery(instance=id, limit=history.PAGE), follow=False)

    answers = addressing.call_instance(selection, instance, load)
    kept = [each for _, events in answers.results for each in events if each.message.startswith(CONSOLE)]
    for each in kept:
        for line in each.message.removeprefix(CONSOLE).splitlines():
            click.echo(output.escape(line))
    answers.check()
    if not kept:
        output.note(
            "the server has no console output of it: it reads the console of a VM whose agent did not register in time, "
            "if the provider has one"
        )


async def _show(selection: ShardSelection, query: EventQuery, *, follow: bool) -> Answers:
    printer = Printer(selection.form, several=selection.several)
    async with fanout.open_clients(selection) as clients:
        chosen: Sequence[Client] = clients
        if query.instance and not ids.is_instance_id(query.instance):
            id, chosen = await addressing.find(clients, query.instance)
            query = replace(query, instance=id)
        answers = await fanout.call_each(chosen, lambda client: _load(client, query, follow=follow))
        answers.ignore_not_found()
        if not follow and not answers.results:
            return answers
        click.echo(printer.many(history.merge_events(answers.results, limit=query.limit), follow=follow), nl=False)
        if not follow:
            await fanout.renew_if_due(chosen, answers)
            return answers
        for shard, error in answers.failures:
            output.note(f"shard {shard}: {errors.explain(error)}; retrying")
        following = history.follow(
            chosen,
            query,
            after={shard: events[-1].id if events else 0 for shard, events in answers.results},
            on_status=lambda shard, text: output.note(f"shard {shard}: {text}"),
            clock=SystemClock(),
        )
        async with contextlib.aclosing(following):
            async for _, event in following:
                click.echo(printer.one(event), nl=False)
    raise AssertionError("following does not end")


async def _load(client: Client, query: EventQuery, *, follow: bool) -> Sequence[Any]:
    events = await history.latest(client, query)
    if not events and not follow:  # a deleted group or instance still has a history
        if query.group:
            await groups.find(client, query.group)
        if query.instance:
            await client.call("GetInstanceStatus", instance_id=query.instance)
    return events
