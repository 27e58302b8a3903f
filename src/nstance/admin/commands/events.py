"""`events`."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from nstance.admin import output
from nstance.admin.help import Command
from nstance.admin.options import instance, name
from nstance.admin.shard_flags import ShardSelection, shard_flags

if TYPE_CHECKING:
    from nstance.admin.client import Client

EXAMPLES = """\
nstance-admin events --shard us-west-2a --group web --limit 20
nstance-admin events --all-shards --follow
nstance-admin events --all-shards --follow -o json | jq -r .reason
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("-f", "--follow", is_flag=True, help="Continue with new events until Ctrl-C.")
@click.option("--group", type=name, metavar="GROUP", help="Only of this group.")
@click.option("--instance", type=instance, metavar="ID", help="Only of this instance.")
@click.option(
    "--limit", type=click.IntRange(0, 1000), default=100, show_default=True, metavar="N", help="The newest N."
)
@shard_flags
def command(selection: ShardSelection, follow: bool, group: str | None, instance: str | None, limit: int) -> None:
    """Show what happened and why, oldest first.

    With `--follow -o json` each event is one line."""
    from nstance.admin import errors
    from nstance.admin.event_loop import run
    from nstance.admin.shard import event_printer, fanout, groups, history
    from nstance.clock import SystemClock

    printer = event_printer.Printer(selection.form, several=selection.several)
    query = history.EventQuery(group=group or "", instance=instance or "", limit=limit)

    async def load(client: "Client") -> Sequence[Any]:
        events = await history.latest(client, query)
        if group and not events and not follow:  # a deleted group still has a history
            await groups.find(client, group)
        return events

    async def show() -> "fanout.Answers[Sequence[Any]]":
        async with fanout.open_clients(selection) as clients:
            answers = (await fanout.call_each(clients, load)).ignore_not_found()
            if not follow and not answers.results:
                return answers
            click.echo(printer.many(history.merge_events(answers.results, limit=limit), follow=follow), nl=False)
            if not follow:
                await fanout.renew_if_due(clients, answers)
                return answers
            for shard, error in answers.failures:
                output.note(f"shard {shard}: {errors.explain(error)}; retrying")
            following = history.follow(
                clients,
                query,
                after={shard: events[-1].id if events else 0 for shard, events in answers.results},
                on_status=lambda shard, text: output.note(f"shard {shard}: {text}"),
                clock=SystemClock(),
            )
            async with contextlib.aclosing(following):
                async for _, event in following:
                    click.echo(printer.one(event), nl=False)
        raise AssertionError("following does not end")

    try:
        run(show()).check()
    except KeyboardInterrupt:
        if not follow:
            raise
