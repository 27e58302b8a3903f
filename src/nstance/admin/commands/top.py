"""`top`."""

import click

from nstance.admin.help import Command
from nstance.admin.shard_flags import ShardSelection, any_shards_flags

EXAMPLES = """\
nstance-admin top
nstance-admin top --shard us-west-2a
NO_COLOR=1 nstance-admin top
"""


@click.command(cls=Command, examples=EXAMPLES)
@any_shards_flags
def command(selection: ShardSelection) -> None:
    """Watch shards, groups, instances and events live on a terminal.

    Without --shard: all shards of --servers. Keys: 1 2 3 groups, instances, events; up and down choose, Enter opens, Esc
    goes back; / filters, s sorts, r reverses; ? shows all keys, q quits. Without color each state has its own sign."""
    from nstance.admin.event_loop import run
    from nstance.admin.top import program

    run(program.run(selection))
