"""`group rollback`, `group resume-rollout` and `group history`; importing this module completes `group`."""

from typing import TYPE_CHECKING, Any

import click

from nstance.admin.commands.arguments import group_argument
from nstance.admin.commands.group import command as command
from nstance.admin.commands.group import dry_run_flag
from nstance.admin.shard_flags import ShardSelection, shard_flags

if TYPE_CHECKING:
    from nstance.admin.client import Client

ROLLBACK_EXAMPLES = """\
nstance-admin group rollback web --shard us-west-2a --dry-run
nstance-admin group rollback web --shard us-west-2a
nstance-admin group rollback web --to 3f2a9c01d4e5 --shard us-west-2a
"""
RESUME_EXAMPLES = """\
nstance-admin group resume-rollout web --shard us-west-2a
"""
HISTORY_EXAMPLES = """\
nstance-admin group history web --shard us-west-2a
nstance-admin group history web --all-shards -o json
"""


@command.command(examples=ROLLBACK_EXAMPLES)
@group_argument
@click.option("--to", "revision", default="", metavar="REVISION", help="A revision of `group history`, or a prefix.")
@dry_run_flag
@shard_flags
def rollback(selection: ShardSelection, group: str, revision: str, dry_run: bool) -> None:
    """Return GROUP to the last revision that was fully rolled out.

    It stays there until its configuration changes, or until `group resume-rollout`."""
    _control_rollout(selection, dry_run, "RollbackGroup", key=group, revision=revision)


@command.command("resume-rollout", examples=RESUME_EXAMPLES)
@group_argument
@dry_run_flag
@shard_flags
def resume_rollout(selection: ShardSelection, group: str, dry_run: bool) -> None:
    """Continue the paused or halted rollout of GROUP. Also ends a rollback."""
    _control_rollout(selection, dry_run, "ResumeRollout", key=group)


def _control_rollout(selection: ShardSelection, dry_run: bool, rpc: str, **fields: str) -> None:
    from nstance.admin.shard import fanout, groups, printing

    async def work(client: "Client") -> Any:
        await groups.find(client, fields["key"])
        return await client.call(rpc, dry_run=dry_run, **fields)

    answers = fanout.call_shards(selection, work)
    if dry_run:
        printing.print_rollouts(selection, answers)
        printing.print_plan(selection, answers.map(lambda answer: answer.plan))
    else:
        printing.print_groups(selection, answers.map(lambda answer: answer.group))


@command.command(examples=HISTORY_EXAMPLES)
@group_argument
@shard_flags
def history(selection: ShardSelection, group: str) -> None:
    """Show the revisions of GROUP, newest first: when they were rolled out, by whom, and with which outcome."""
    from nstance.admin.shard import fanout, groups, printing, records

    answers = fanout.call_shards(selection, lambda client: groups.history(client, group)).ignore_not_found().flatten()
    found = [records.revision_row(shard, records.REVISION.fill(each)) for shard, each in answers.results]
    printing.print_rows(selection, found, columns=records.REVISION_COLUMNS, unbroken=("revision", "outcome"))
    answers.check()
