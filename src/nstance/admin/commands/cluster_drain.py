"""`cluster drain-all`."""

import sys

import click

from nstance.admin import output
from nstance.admin.help import Command
from nstance.admin.options import format_flag, positive
from nstance.admin.shard_flags import ShardSelection, all_shards_flags

EXAMPLES = """\
nstance-admin cluster drain-all --dry-run
nstance-admin cluster drain-all
nstance-admin cluster drain-all --yes --within 1h && terraform destroy
"""
COLUMNS = ("shard", "group", "instances", "instance_id", "action")


@click.command("drain-all", cls=Command, examples=EXAMPLES)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--release-unknown", is_flag=True, help="Also delete VMs with the shards' tags that have no record.")
@click.option("--within", type=positive, default="30m", show_default=True, metavar="DURATION", help="The longest wait.")
@format_flag
@all_shards_flags
def drain_all(selection: ShardSelection, yes: bool, dry_run: bool, release_unknown: bool, within: float) -> None:
    """Scale all groups of all shards to zero, delete all other instances, and wait until no VM is left.

    Instances are drained as always. Paused groups are resumed. The configuration stays: scale the groups up, or reset
    them with `group update --unset-size`. An operator's identity sees its own tenant: repeat the command for each tenant
    (--identity-dir). The exit code is 1 if something is left."""
    from nstance.admin import errors
    from nstance.admin.event_loop import run
    from nstance.admin.shard import emptying, fanout
    from nstance.clock import SystemClock

    answers = fanout.call_shards(selection, emptying.look)
    contents = dict(answers.results)
    plan = [row for _, found in answers.results for row in found.plan(release_unknown=release_unknown)]
    output.print_rows(plan, selection.form, columns=COLUMNS, unbroken=("instance_id",))
    answers.check()  # a shard that cannot be emptied: nothing is begun
    if dry_run:
        output.note("dry run: nothing was changed")
        return
    count = sum(len(found.instances) for found in contents.values())
    if not yes and any(not found.is_empty for found in contents.values()):
        _confirm(count, sorted(contents))
    progress = output.ProgressLine()

    async def work() -> None:
        async with fanout.open_clients(selection) as clients:
            begun = await fanout.call_each(
                clients,
                lambda client: emptying.empty(client, contents[client.shard], release_unknown=release_unknown),
            )
            begun.check()
            await emptying.until_empty(
                clients,
                release_unknown=release_unknown,
                within=within,
                on_progress=progress.show,
                clock=SystemClock(),
            )
            await clients[0].renew_if_due()

    try:
        run(work())
    except errors.CommandError:
        progress.clear()
        raise
    progress.clear()
    tenants = sorted({found.tenant for found in contents.values()})
    output.note(f"empty: no VM of tenant {', '.join(tenants)} is left in {', '.join(sorted(contents))}")


def _confirm(count: int, shards: list[str]) -> None:
    question = f"Delete {count} instances in {', '.join(shards)}?"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Give --yes, because there is no terminal to ask on")
    click.confirm(question, abort=True, err=True)
