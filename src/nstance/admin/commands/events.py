"""`events`."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from nstance.admin import output
from nstance.admin.help import Command
from nstance.admin.options import format_flag, instance, name
from nstance.admin.reach import Reach, reach_flags

if TYPE_CHECKING:
    from nstance.admin.client import Client

EXAMPLES = """\
nstance-admin events --shard us-west-2a --group web --limit 20
nstance-admin events --all-shards --follow
nstance-admin events --all-shards --follow -o json | jq -r .reason
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@click.option("--group", type=name, metavar="GROUP", help="Only of this group.")
@click.option("--instance", type=instance, metavar="ID", help="Only of this instance.")
@click.option(
    "--limit", type=click.IntRange(0, 1000), default=100, show_default=True, metavar="N", help="The newest N."
)
@format_flag
@reach_flags
def command(reach: Reach, follow: bool, group: str | None, instance: str | None, limit: int, form: str) -> None:
    """Show what happened and why, oldest first.

    With `--follow -o json` each event is one line."""
    from nstance.admin import failures
    from nstance.admin.running import run
    from nstance.admin.shard import asking, event_lines, groups, history
    from nstance.clock import SystemClock

    printer = event_lines.Printer(form, several=reach.several)

    async def look(client: "Client") -> Sequence[Any]:
        # At least one, even for --limit 0: whoever follows begins behind it.
        events = await history.latest(client, group=group or "", instance=instance or "", limit=max(1, limit))
        if group and not events and not follow:  # one that is deleted has a history
            await groups.find(client, group)
        return events

    async def show() -> "asking.Answers[Sequence[Any]]":
        async with asking.opened(reach) as found:
            answers = (await asking.each(found, look)).forgive_absence()
            if not follow and not answers.good:
                return answers
            click.echo(printer.many(history.merged(answers.good, limit=limit), follow=follow), nl=False)
            if not follow:
                answered = dict(answers.good)
                await next(client for client in found if client.shard in answered).renew_if_due()
                return answers
            for shard, problem in answers.bad:
                output.note(f"shard {shard}: {failures.explain(problem)}; trying on")
            after = {shard: events[-1].id if events else 0 for shard, events in answers.good}
            coming = history.follow(
                found,
                after=after,
                begin=limit,
                group=group or "",
                instance=instance or "",
                tell=lambda shard, text: output.note(f"shard {shard}: {text}"),
                clock=SystemClock(),
            )
            async with contextlib.aclosing(coming):
                async for _, event in coming:
                    click.echo(printer.one(event), nl=False)
        raise AssertionError("following has no end")

    try:
        run(show()).check()
    except KeyboardInterrupt:
        if not follow:
            raise
