"""`doctor`."""

from typing import TYPE_CHECKING

import click

from nstance.admin import output
from nstance.admin.help import Command
from nstance.admin.options import Target, format_flag, optional_target_flags
from nstance.admin.shard_flags import ShardSelection, shards_if_known

if TYPE_CHECKING:
    from nstance.admin.doctor.findings import Finding

EXAMPLES = """\
nstance-admin doctor --servers us-west-2a=10.0.0.1:8993
nstance-admin doctor --servers us-west-2a=10.0.0.1:8993 --storage-bucket my-bucket
nstance-admin doctor --storage-bucket my-bucket --read-only -o json
"""
COLUMNS = ("level", "check", "subject", "message", "advice")


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--all", "show_all", is_flag=True, help="Also list what is in order.")
@click.option("--strict", is_flag=True, help="Exit with 1 also for warnings.")
@click.option("--read-only", is_flag=True, help="Write nothing to the bucket: skips the race and the bucket's clock.")
@format_flag
@shards_if_known
@optional_target_flags
def command(
    selection: ShardSelection | None, target: Target | None, form: str, show_all: bool, strict: bool, read_only: bool
) -> None:
    """Check clocks, storage, certificates, permissions, ports and versions, and say what to do about each finding.

    Running shards are checked if --servers is given, the bucket if --storage-bucket is given. Objects that the check of
    the bucket writes are removed again. The exit code is 1 if there is a problem."""
    from nstance.admin import errors
    from nstance.admin.doctor.findings import Level
    from nstance.admin.event_loop import run

    if selection is None and target is None:
        raise click.UsageError("nothing to check: give --servers, --storage-bucket or both")
    findings = run(_check(selection, target, read_only))
    shown = [each for each in findings if show_all or form != "table" or each.level is not Level.OK]
    if shown or form != "table":
        output.print_rows([each.record() for each in shown], form, columns=COLUMNS)
    counts = {level: sum(each.level is level for each in findings) for level in Level}
    summary = f"{counts[Level.PROBLEM]} problems, {counts[Level.WARNING]} warnings, {counts[Level.OK]} checks in order"
    if counts[Level.PROBLEM] or (strict and counts[Level.WARNING]):
        raise errors.CommandError(summary)
    output.note(summary)


async def _check(selection: ShardSelection | None, target: Target | None, read_only: bool) -> "list[Finding]":
    from nstance.admin.doctor.shards import check_shards
    from nstance.admin.doctor.storage import check_storage

    found = [] if selection is None else await check_shards(selection)
    if target is not None:
        found += await check_storage(target, read_only=read_only)
    return found
