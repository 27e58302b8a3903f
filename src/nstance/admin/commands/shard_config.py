"""`config status`, `config refresh` and `config diff`."""

import click

from nstance.admin import output
from nstance.admin.help import Group
from nstance.admin.options import format_flag, name
from nstance.admin.reach import Reach, reach_flags

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
@format_flag
@reach_flags
def status(reach: Reach, form: str) -> None:
    """Show which config is in force, who leads, and why a newer config was refused."""
    from nstance.admin.shard import asking, records

    answers = asking.ask(reach, lambda client: client.call("GetConfigStatus"))
    rows = [records.config(shard, answer) for shard, answer in answers.good]
    output.show(rows, form, columns=("shard", "leader", "epoch", "etag", "last_modified", "size"), whole=("etag",))
    if form == "table":
        for row in rows:
            for problem in row["errors"]:
                output.note(f"shard {row['shard']} refuses a newer config: {problem}")
    answers.check()


@command.command(examples=REFRESH_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Have it read and checked only, and show what it would change.")
@format_flag
@reach_flags
def refresh(reach: Reach, dry_run: bool, form: str) -> None:
    """Have the shard read its config from the bucket now, and not at its next look.

    A config that is not valid is refused with its problems, the old one goes on, and the exit code is 1."""
    from nstance.admin import failures
    from nstance.admin.shard import asking, plans, records

    answers = asking.ask(reach, lambda client: client.call("RefreshConfig", dry_run=dry_run))
    answers.bad += [
        (
            shard,
            failures.Refused(f"the new config {'would be' if dry_run else 'was'} refused: {'; '.join(answer.errors)}"),
        )
        for shard, answer in answers.good
        if answer.errors
    ]
    output.warn(warning for _, answer in answers.good for warning in answer.warnings)
    if dry_run:
        answers.good = [(shard, answer) for shard, answer in answers.good if not answer.errors]
        for shard, answer in answers.good:
            output.note(
                f"shard {shard}: config {answer.etag} is new" if answer.updated else f"shard {shard}: nothing is new"
            )
            if answer.needs_restart:
                output.note(f"shard {shard}: a restart would be needed for {', '.join(answer.needs_restart)}")
        answers.good = [(shard, answer.plan) for shard, answer in answers.good]
        plans.show(answers, reach, form, groups=True)
        return
    rows = [records.refreshed(shard, answer) for shard, answer in answers.good]
    output.show(rows, form, columns=("shard", "updated", "etag", "needs_restart"), whole=("etag",))
    answers.check()


@command.command(examples=DIFF_EXAMPLES)
@click.argument("group", type=name, required=False)
@format_flag
@reach_flags
def diff(reach: Reach, group: str | None, form: str) -> None:
    """Compare the config file, the API and reality for each group, or for GROUP.

    FILE is what the config in force says, API what was set through the API and overrides it, ACTUAL what is there. The
    exit code is 1 if they differ anywhere: a setting that the API overrides with another value, a group that does not have
    its size of ready instances, or instances of another type."""
    from nstance.admin.shard import asking, diff, records

    answers = asking.ask(reach, lambda client: diff.compare(client, group)).forgive_absence()
    rows = [row for _, found in answers.good for row in found]
    if form != "table":
        output.show(rows, form, columns=())
    else:
        columns = records.columns(diff.COLUMNS, several=reach.several)
        output.show(diff.table(rows), form, columns=columns, whole=("shard", "group", "setting"))
    answers.check()
    if any(row["differs"] for row in rows):
        click.get_current_context().exit(1)
