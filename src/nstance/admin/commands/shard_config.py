"""`config status`, `config refresh` and `config diff`."""

import click

from nstance.admin import output
from nstance.admin.commands.arguments import optional_group_argument
from nstance.admin.help import Group
from nstance.admin.shard_flags import ShardSelection, shard_flags

STATUS_EXAMPLES = """\
nstance-admin config status --shard us-west-2a --servers us-west-2a=10.0.0.1:8993
nstance-admin config status --all-shards -o json
"""
REFRESH_EXAMPLES = """\
nstance-admin config refresh --shard us-west-2a --servers us-west-2a=10.0.0.1:8993
nstance-admin config refresh --all-shards
nstance-admin config refresh --shard us-west-2a --dry-run
"""
DIFF_EXAMPLES = """\
nstance-admin config diff --shard us-west-2a
nstance-admin config diff web --all-shards -o json
"""


@click.group(cls=Group, examples=STATUS_EXAMPLES + REFRESH_EXAMPLES + DIFF_EXAMPLES)
def command() -> None:
    """The config that a shard runs with. To write one: `cluster config put`."""


@command.command(examples=STATUS_EXAMPLES)
@shard_flags
def status(selection: ShardSelection) -> None:
    """Show the active config, the leader, and why a newer config was rejected."""
    from nstance.admin.shard import fanout, records

    answers = fanout.call_shards(selection, lambda client: client.call("GetConfigStatus"))
    rows = [records.config(shard, answer) for shard, answer in answers.results]
    columns = ("shard", "leader", "epoch", "etag", "last_modified", "size")
    output.print_rows(rows, selection.form, columns=columns, unbroken=("etag",))
    if selection.is_table:
        for row in rows:
            for problem in row["errors"]:
                output.note(f"shard {row['shard']} rejects a newer config: {problem}")
    answers.check()


@command.command(examples=REFRESH_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Only read and check it, and show what it would change.")
@shard_flags
def refresh(selection: ShardSelection, dry_run: bool) -> None:
    """Make the shard read its config from the bucket now.

    An invalid config is rejected with its problems, the previous one stays active, and the exit code is 1."""
    from nstance.admin import errors
    from nstance.admin.shard import fanout, printing, records

    answers = fanout.call_shards(selection, lambda client: client.call("RefreshConfig", dry_run=dry_run))
    verb = "would be" if dry_run else "was"
    answers.failures += [
        (shard, errors.CommandError(f"the new config {verb} rejected: {'; '.join(answer.errors)}"))
        for shard, answer in answers.results
        if answer.errors
    ]
    output.warn(warning for _, answer in answers.results for warning in answer.warnings)
    if not dry_run:
        rows = [records.REFRESHED.fill(answer, shard=shard) for shard, answer in answers.results]
        columns = ("shard", "updated", "etag", "needs_restart")
        output.print_rows(rows, selection.form, columns=columns, unbroken=("etag",))
        answers.check()
        return
    answers.results = [(shard, answer) for shard, answer in answers.results if not answer.errors]
    for shard, answer in answers.results:
        output.note(f"shard {shard}: " + (f"config {answer.etag} is new" if answer.updated else "no new config"))
        if answer.needs_restart:
            output.note(f"shard {shard}: servers must be restarted for {', '.join(answer.needs_restart)}")
    printing.print_plan(selection, answers.map(lambda answer: answer.plan), name_groups=True)


@command.command(examples=DIFF_EXAMPLES)
@optional_group_argument
@shard_flags
def diff(selection: ShardSelection, group: str | None) -> None:
    """Compare the config file, the API and reality for each group, or for GROUP.

    FILE is the value in the config file, API the value that the API set over it, ACTIVE the one of both that counts,
    ACTUAL what exists. The exit code is 1 if they differ: the API overrides a setting with another value, a group is rolled
    back, does not have its size of ready instances, or has instances of another type."""
    from nstance.admin.shard import diff, fanout, printing

    answers = fanout.call_shards(selection, lambda client: diff.compare(client, group)).ignore_not_found()
    rows = [row for _, found in answers.results for row in found]
    if selection.is_table:
        printing.print_rows(selection, diff.table(rows), columns=diff.COLUMNS, unbroken=("group", "setting"))
    else:
        output.print_rows(rows, selection.form, columns=())
    answers.check()
    if any(row["differs"] for row in rows):
        click.get_current_context().exit(1)
