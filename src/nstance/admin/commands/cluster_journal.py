"""`cluster journal`."""

import contextlib

import click

from nstance.admin.event_loop import run
from nstance.admin.help import Command
from nstance.admin.options import Target, format_flag, shard_flag, target_flags
from nstance.model.ids import ShardId

EXAMPLES = """\
nstance-admin cluster journal --shard us-west-2a --storage-bucket my-bucket
nstance-admin cluster journal --shard us-west-2a --storage-bucket my-bucket --from 1200 --limit 10
nstance-admin cluster journal --shard us-west-2a --storage-bucket my-bucket --follow -o json | jq .slot
"""
DEFAULT_SLOTS = 100


@click.command(cls=Command, examples=EXAMPLES)
@shard_flag
@click.option("--from", "start", type=click.IntRange(1, 10**19), metavar="N", help="Start at slot N.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="N",
    help=f"At most N slots; default: the last {DEFAULT_SLOTS}, or all with --from.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new slots until Ctrl-C.")
@format_flag
@target_flags
def journal(target: Target, shard: str, start: int | None, limit: int | None, follow: bool, form: str) -> None:
    """Show what the shard decided, slot by slot, with reasons and changes of instances.

    Damaged and missing slots are reported, and the exit code is 1 if there are any. With `-o json` each slot is one line."""
    from nstance.admin import errors
    from nstance.admin.cluster import journal as work
    from nstance.admin.cluster import journal_printer

    if limit is None and start is None:
        limit = DEFAULT_SLOTS
    printer = journal_printer.Printer(form)
    damaged: list[int] = []

    async def show() -> None:
        async with contextlib.aclosing(
            work.read(target, ShardId(shard), start=start, limit=limit, follow=follow)
        ) as slots:
            async for found in slots:
                click.echo(printer.text(found), nl=False)
                if isinstance(found, work.DamagedSlot):
                    damaged.append(found.number)

    try:
        run(show())
    except KeyboardInterrupt:
        if not follow:
            raise
    if damaged:
        numbers = ", ".join(map(str, damaged[:20])) + (" and more" if len(damaged) > 20 else "")
        raise errors.CommandError(
            f"the journal of shard {shard} is damaged at slot {numbers}; restore it from a backup"
        )
