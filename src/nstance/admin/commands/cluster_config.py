"""`cluster config`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nstance.admin import output
from nstance.admin.commands.arguments import wait_flags
from nstance.admin.event_loop import run
from nstance.admin.help import Group
from nstance.admin.options import Target, format_flag, shard_flag, target_flags
from nstance.admin.shard_flags import ShardSelection, shards_if_known
from nstance.model.ids import ShardId

if TYPE_CHECKING:
    from nstance.admin.cluster import configs

PUT_EXAMPLES = """\
nstance-admin cluster config put --shard us-west-2a config.jsonc --storage-bucket my-bucket --dry-run
nstance-admin cluster config put --shard us-west-2a config.jsonc --storage-bucket my-bucket
nstance-admin cluster config put --shard us-west-2a config.jsonc --storage-bucket my-bucket --wait --within 30m
"""
GET_EXAMPLES = """\
nstance-admin cluster config get --shard us-west-2a --storage-bucket my-bucket > config.jsonc
"""


@click.group(cls=Group, examples=PUT_EXAMPLES + GET_EXAMPLES)
def config() -> None:
    """The stored config of a shard."""


@config.command(examples=PUT_EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@shard_flag
@click.option("--dry-run", is_flag=True, help="Check it and show what would change; write nothing.")
@wait_flags
@shards_if_known
@format_flag
@target_flags
def put(target: Target, selection: ShardSelection | None, file: str, shard: str, form: str, **flags: Any) -> None:
    """Check FILE (- for standard input), write it as the shard's config and show what changes.

    All problems of the file are reported at once. If the config was changed in the meantime, nothing is written. With
    --wait, which needs --servers, the shard reads it now, and the command ends when its groups are stable."""
    from nstance.admin.cluster import configs

    dry_run, wait, within = flags["dry_run"], flags["wait"], flags["within"]
    if wait and (selection is None or shard not in selection.servers):
        raise click.UsageError(f"--wait needs the servers of shard {shard}, such as --servers {shard}=10.0.0.1:8993")
    body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    outcome = run(configs.put(target, ShardId(shard), body, source=file, dry_run=dry_run))
    is_written = not dry_run and not outcome.is_same
    output.warn(outcome.warnings)
    if form == "table":
        _explain(outcome, is_written=is_written)
    else:
        record = {
            "shard": shard,
            "key": outcome.key,
            "written": is_written,
            "first": outcome.is_first,
            "compared": outcome.is_compared,
            "blocks": list(outcome.blocks),
            "groups": list(outcome.groups),
            "warnings": list(outcome.warnings),
        }
        output.print_record(record, form)
    if wait and not dry_run:
        assert selection is not None
        _wait(replace(selection, shards=(ShardId(shard),), several=False), within)


def _wait(selection: ShardSelection, within: float) -> None:
    from nstance.admin import errors
    from nstance.admin.commands.wait import until_stable
    from nstance.admin.shard import fanout

    answers = fanout.call_shards(selection, lambda client: client.call("RefreshConfig"))
    answers.check()
    for _, answer in answers.results:
        if answer.errors:
            raise errors.CommandError(f"the shard rejects the new config: {'; '.join(answer.errors)}")
    until_stable(selection, (), within=within)


def _explain(outcome: "configs.Outcome", *, is_written: bool) -> None:
    if outcome.is_same:
        output.note(f"{outcome.key} is unchanged; nothing to do")
        return
    if not outcome.is_compared:
        output.note("the previous config is invalid, so every group looks new")
    if outcome.groups:
        output.print_rows(outcome.groups, "table", columns=("group", "was", "size", "changes"))
    if outcome.blocks:
        output.note(f"changed blocks: {', '.join(outcome.blocks)}")
    if not outcome.groups and not outcome.blocks:
        output.note("no group changes")
    output.note(f"wrote {outcome.key}" if is_written else f"dry run: {outcome.key} was not written")


@config.command(examples=GET_EXAMPLES)
@shard_flag
@target_flags
def get(target: Target, shard: str) -> None:
    """Print the shard's config as it is stored."""
    from nstance.admin.cluster import configs

    click.echo(run(configs.get(target, ShardId(shard))), nl=False)
