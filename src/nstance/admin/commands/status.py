"""`status`."""

import click

from nstance.admin.help import Command
from nstance.admin.options import positive
from nstance.admin.shard_flags import ShardSelection, shard_flags

MIN_INTERVAL_SECONDS = 0.2

EXAMPLES = """\
nstance-admin status --all-shards
nstance-admin status --shard us-west-2a -o json
nstance-admin status --all-shards --watch
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("-w", "--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option(
    "--interval", type=positive, default="2s", show_default=True, metavar="DURATION", help="With --watch: between two."
)
@shard_flags
def command(selection: ShardSelection, watch: bool, interval: float) -> None:
    """Show shards, leaders, groups, sizes and problems on one screen.

    Healthy groups share a line; the others show their instances and latest problems. The exit code is 1 if a shard does
    not answer. With --watch the screen is redrawn; in a pipe, and with -o, only what differs from before is printed,
    as JSON on one line."""
    from nstance.admin.shard import status_screen

    if watch:
        status_screen.watch(selection, interval=max(MIN_INTERVAL_SECONDS, interval))
    else:
        status_screen.show(selection)
