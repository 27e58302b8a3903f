"""`group rollback`, `group resume-rollout` and `group history`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from nstance.admin import output
from nstance.admin.commands.group import command, dry_run_flag, group_argument, show_groups
from nstance.admin.options import format_flag
from nstance.admin.reach import Reach, reach_flags

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
@click.option(
    "--to", "revision", default="", metavar="REVISION", help="A revision of `group history`, or its beginning."
)
@dry_run_flag
@format_flag
@reach_flags
def rollback(reach: Reach, group: str, revision: str, dry_run: bool, form: str) -> None:
    """Return GROUP to the last revision that was fully rolled out.

    The group stays there until its configuration changes, or until `group resume-rollout`."""
    _steer(
        reach,
        form,
        dry_run,
        group,
        lambda client: client.call("RollbackGroup", key=group, revision=revision, dry_run=dry_run),
    )


@command.command("resume-rollout", examples=RESUME_EXAMPLES)
@group_argument
@dry_run_flag
@format_flag
@reach_flags
def resume_rollout(reach: Reach, group: str, dry_run: bool, form: str) -> None:
    """Let the rollout of GROUP go on that is paused or halted. Ends a rollback, too."""
    _steer(reach, form, dry_run, group, lambda client: client.call("ResumeRollout", key=group, dry_run=dry_run))


@command.command(examples=HISTORY_EXAMPLES)
@group_argument
@format_flag
@reach_flags
def history(reach: Reach, group: str, form: str) -> None:
    """Show the revisions of GROUP: what was rolled out when, by whom, and how it went. Newest first."""
    from nstance.admin.shard import asking, records, rollouts

    answers = asking.ask(reach, lambda client: rollouts.history(client, group)).forgive_absence()
    found = [records.revision_row(shard, records.revision(each)) for shard, told in answers.good for each in told]
    columns = records.columns(records.REVISION_COLUMNS, several=reach.several)
    output.show(found, form, columns=columns, whole=("shard", "revision", "outcome"))
    answers.check()


def _steer(reach: Reach, form: str, dry_run: bool, group: str, act: "Callable[[Client], Any]") -> None:
    from nstance.admin.shard import asking, groups, plans

    async def work(client: "Client") -> Any:
        await groups.find(client, group)
        answer = await act(client)
        return answer.plan if dry_run else answer.group

    answers = asking.ask(reach, work)
    if dry_run:
        plans.show(answers, reach, form)
        return
    show_groups(answers.good, reach, form)
    answers.check()
