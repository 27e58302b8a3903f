"""`cluster journal`."""

import contextlib

import click

from nstance.admin.help import Command
from nstance.admin.options import Target, format_flag, shard_flag, target_flags
from nstance.admin.running import run
from nstance.model.ids import ShardId

EXAMPLES = """\
nstance-admin cluster journal --shard us-west-2a --storage-bucket my-bucket
nstance-admin cluster journal --shard us-west-2a --storage-bucket my-bucket --from 1200 --limit 10
nstance-admin cluster journal --shard us-west-2a --storage-bucket my-bucket --follow -o json | jq .slot
"""
LAST = 100


@click.command(cls=Command, examples=EXAMPLES)
@shard_flag
@click.option("--from", "start", type=click.IntRange(1, 10**19), metavar="N", help="Begin with slot N.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="N",
    help=f"At most so many slots; left out: the last {LAST}, or with --from all.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is decided from now on, until Ctrl-C.")
@format_flag
@target_flags
def journal(target: Target, shard: str, start: int | None, limit: int | None, follow: bool, form: str) -> None:
    """Show what the shard decided: slot by slot, with reasons and the changes of instances.

    Damaged and missing slots are named, and the exit code is 1 if there are any. With `-o json` each slot is one line."""
    from nstance.admin import failures
    from nstance.admin.cluster import journal as work
    from nstance.admin.cluster import journal_lines

    if limit is None and start is None:
        limit = LAST
    printer = journal_lines.Printer(form)
    damaged: list[int] = []

    async def show() -> None:
        async with contextlib.aclosing(
            work.read(target, ShardId(shard), start=start, limit=limit, follow=follow)
        ) as slots:
            async for found in slots:
                click.echo(printer.text(found), nl=False)
                if isinstance(found, work.Trouble):
                    damaged.append(found.number)

    try:
        run(show())
    except KeyboardInterrupt:
        if not follow:
            raise
    if damaged:
        places = ", ".join(map(str, damaged[:20])) + (" and more" if len(damaged) > 20 else "")
        raise failures.Refused(f"the journal of shard {shard} is damaged at slot {places}; restore it from a backup")
