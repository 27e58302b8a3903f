"""`events`."""

import click

from nstance.admin.commands.arguments import from_shards, group_option
from nstance.admin.help import Command
from nstance.admin.options import instance_or_prefix
from nstance.admin.shard_flags import ShardSelection, shard_flags

EXAMPLES = """\
nstance-admin events --shard us-west-2a --group web --limit 20
nstance-admin events --all-shards --follow
nstance-admin events --all-shards --follow -o json | jq -r .reason
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("-f", "--follow", is_flag=True, help="Continue with new events until Ctrl-C.")
@group_option("Only of this group.")
@click.option(
    "--instance",
    type=instance_or_prefix,
    metavar="ID",
    shell_complete=from_shards("instance"),
    help="Only of this instance; a unique beginning or end of its ID is enough.",
)
@click.option(
    "--limit", type=click.IntRange(0, 1000), default=100, show_default=True, metavar="N", help="The newest N."
)
@shard_flags
def command(selection: ShardSelection, follow: bool, group: str | None, instance: str | None, limit: int) -> None:
    """Show what happened and why, oldest first.

    With `--follow -o json` each event is one line."""
    from nstance.admin.shard import event_stream, history

    query = history.EventQuery(group=group or "", instance=instance or "", limit=limit)
    event_stream.show(selection, query, follow=follow)
