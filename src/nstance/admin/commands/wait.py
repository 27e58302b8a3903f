"""`wait`."""

from collections.abc import Sequence

import click

from nstance.admin import output
from nstance.admin.commands.arguments import from_shards, within_flag
from nstance.admin.help import Command
from nstance.admin.options import name
from nstance.admin.shard_flags import ShardSelection, shard_flags_without_format

EXAMPLES = """\
nstance-admin wait web --shard us-west-2a
nstance-admin wait --all-shards --within 5m
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("groups", nargs=-1, type=name, metavar="[GROUP]...", shell_complete=from_shards("group"))
@within_flag
@shard_flags_without_format
def command(selection: ShardSelection, groups: tuple[str, ...], within: float) -> None:
    """Wait until the groups are stable: as many ready instances as desired, all of the current revision, none leaving,
    nothing blocked, and no rollout under way or halted.

    Without GROUP: all groups. Progress goes to standard error: how many of the instances are done, an estimate of the time
    that is left, and what is missing. The exit code is 1 if the time is over."""
    until_stable(selection, groups, within=within)


def until_stable(selection: ShardSelection, groups: Sequence[str], *, within: float) -> None:
    """Also for `--wait` of other commands. Raises CommandError."""
    from nstance.admin.event_loop import run
    from nstance.admin.shard import fanout, waiting
    from nstance.clock import SystemClock

    progress = output.ProgressLine()

    async def work() -> list[str]:
        async with fanout.open_clients(selection) as clients:
            notes = await waiting.until_stable(
                clients, groups, within=within, on_progress=progress.show, clock=SystemClock()
            )
            await clients[0].renew_if_due()
            return notes

    try:
        notes = run(work())
    finally:
        progress.clear()
    for line in notes:
        output.note(line)
    output.note("stable")
