"""`status`."""

import click

from nstance.admin import output
from nstance.admin.help import Command
from nstance.admin.shard_flags import ShardSelection, shard_flags

EXAMPLES = """\
nstance-admin status --all-shards
nstance-admin status --shard us-west-2a -o json
watch nstance-admin status --all-shards
"""


@click.command(cls=Command, examples=EXAMPLES)
@shard_flags
def command(selection: ShardSelection) -> None:
    """Show shards, leaders, groups, sizes and problems on one screen.

    Healthy groups share a line; the others show their instances and latest problems. The exit code is 1 if a shard does
    not answer."""
    from nstance.admin.shard import fanout, overview, status_tree

    now = output.now()
    answers = fanout.call_shards(selection, lambda client: overview.load_shard(client, now=now))
    if selection.is_table:
        trees = {shard: status_tree.draw(shard, view, now=now) for shard, view in answers.results}
        trees |= {shard: status_tree.unreachable(shard) for shard, _ in answers.failures}
        console = output.console()
        for shard in sorted(trees):
            console.print(trees[shard])
    else:
        shards = [overview.document(view) for _, view in answers.results]
        output.print_record({"shards": shards}, selection.form)
    answers.check()
