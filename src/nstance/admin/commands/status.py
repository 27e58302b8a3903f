"""`status`."""

import click

from nstance.admin import output
from nstance.admin.help import Command
from nstance.admin.options import format_flag
from nstance.admin.reach import Reach, reach_flags

EXAMPLES = """\
nstance-admin status --all-shards
nstance-admin status --shard us-west-2a -o json
watch nstance-admin status --all-shards
"""


@click.command(cls=Command, examples=EXAMPLES)
@format_flag
@reach_flags
def command(reach: Reach, form: str) -> None:
    """Show shards, leaders, groups, sizes and trouble on one screen.

    What is healthy is one line; what is not is opened: its instances and the latest trouble. The exit code is 1 if a
    shard does not answer."""
    from nstance.admin.shard import asking, fresh, overview, tree

    now = fresh.now()
    answers = asking.ask(reach, lambda client: overview.look(client, now=now))
    if form != "table":
        output.show_one({"shards": [overview.document(view) for _, view in answers.good]}, form)
    else:
        trees = {shard: tree.draw(shard, view, now=now) for shard, view in answers.good}
        trees |= {shard: tree.unreachable(shard) for shard, _ in answers.bad}
        console = output.console()
        for shard in sorted(trees):
            console.print(trees[shard])
    answers.check()
