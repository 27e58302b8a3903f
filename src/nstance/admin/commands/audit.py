"""`audit`: who did what, and whether the journal is still the one that was written."""

import datetime
import json
from typing import Any

import click

from nstance.admin import output
from nstance.admin.event_loop import run
from nstance.admin.help import Command, Group
from nstance.admin.options import Function, Target, decorated, format_flag, instance, name, shard_flag, target_flags
from nstance.model.ids import ShardId

EXAMPLES = """\
nstance-admin audit list --shard us-west-2a --storage-bucket my-bucket --person ada@example.com
nstance-admin audit export --shard us-west-2a --storage-bucket my-bucket > audit.ndjson
nstance-admin audit verify --shard us-west-2a --storage-bucket my-bucket
"""


def _time(text: str) -> float:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"expected a time such as 2026-01-31T12:00:00Z, found {text[:64]!r}") from None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()


def _head(text: str) -> tuple[int, str]:
    from nstance.admin.cluster import audit

    found = audit.parse_head(text)
    if found is None:
        raise click.BadParameter(f"expected SLOT:HASH as `audit verify` prints it, found {text[:128]!r}")
    return found


def _filter_flags(command: Function) -> Function:
    options = (
        click.option("--person", default="", metavar="WHO", help="Only of this person or operator."),
        click.option("--tenant", type=name, help="Only of this tenant."),
        click.option("--group", type=name, help="Only of this group."),
        click.option("--instance", type=instance, help="Only of this instance."),
        click.option("--action", default="", metavar="REASON", help="Only with this reason, such as config."),
        click.option("--since", type=_time, metavar="TIME", help="Only from this time on."),
        click.option("--until", type=_time, metavar="TIME", help="Only until this time."),
        click.option("--all", "everything", is_flag=True, help="Also what no person or operator asked for."),
    )
    return decorated(command, options)


@click.group(cls=Group, examples=EXAMPLES)
def command() -> None:
    """Show who did what, from a shard's journal, and check that nobody altered it.

    The journal keeps at least seven days. Export it regularly to keep more."""


LIST_EXAMPLES = """\
nstance-admin audit list --shard us-west-2a --storage-bucket my-bucket --group web --since 2026-01-31T00:00:00Z
nstance-admin audit list --shard us-west-2a --storage-bucket my-bucket --action config -o json
"""


@command.command("list", cls=Command, examples=LIST_EXAMPLES)
@shard_flag
@_filter_flags
@format_flag
@target_flags
def list_entries(target: Target, shard: str, form: str, **filters: Any) -> None:
    """List what people and operators did."""
    rows, damaged = _read(target, ShardId(shard), filters)
    shown = [{**row, "who": ", ".join(row["persons"] or row["operators"])} for row in rows] if form == "table" else rows
    output.print_rows(shown, form, columns=("time", "who", "action", "tenant", "group", "instance", "message"))
    _check(damaged, shard)


EXPORT_EXAMPLES = """\
nstance-admin audit export --shard us-west-2a --storage-bucket my-bucket > audit.ndjson
nstance-admin audit export --shard us-west-2a --storage-bucket my-bucket --all --since 2026-01-31T00:00:00Z
"""


@command.command(cls=Command, examples=EXPORT_EXAMPLES)
@shard_flag
@_filter_flags
@target_flags
def export(target: Target, shard: str, **filters: Any) -> None:
    """Print one JSON object per line, for a log archive."""
    rows, damaged = _read(target, ShardId(shard), filters)
    for row in rows:
        click.echo(json.dumps(row, ensure_ascii=False))
    _check(damaged, shard)


VERIFY_EXAMPLES = """\
nstance-admin audit verify --shard us-west-2a --storage-bucket my-bucket
nstance-admin audit verify --shard us-west-2a --storage-bucket my-bucket -o json | jq -r .head > head
nstance-admin audit verify --shard us-west-2a --storage-bucket my-bucket --head "$(cat head)"
"""


@command.command(cls=Command, examples=VERIFY_EXAMPLES)
@shard_flag
@click.option("--head", "noted", type=_head, metavar="SLOT:HASH", help="A head that an earlier run printed.")
@format_flag
@target_flags
def verify(target: Target, shard: str, noted: tuple[int, str] | None, form: str) -> None:
    """Check that no slot of the journal was altered, removed or moved.

    Each slot holds the checksum of the slot before it. Note the head that is printed in another place: with --head the
    next run also finds a journal that was rewritten as a whole. Exits with 1 if there is a problem."""
    from nstance.admin import errors
    from nstance.admin.cluster import audit

    found = run(audit.verify(target, ShardId(shard), noted=noted))
    record = found.record(ShardId(shard))
    shown = {**record, "problems": len(found.problems)} if form == "table" else record
    output.print_record(shown, form)
    for problem in found.problems:
        output.note(f"slot {problem.number}: {problem.message}")
    if found.problems:
        raise errors.CommandError(
            f"the journal of shard {shard} has {len(found.problems)} problems, the first at slot "
            f"{found.problems[0].number}; compare it with a backup"
        )


def _read(target: Target, shard: ShardId, filters: dict[str, Any]) -> tuple[list[dict[str, Any]], list[int]]:
    from nstance.admin.cluster import audit

    wanted = audit.AuditFilter(**{key: value for key, value in filters.items() if value is not None})
    rows, damaged = run(audit.collect(target, shard, wanted))
    return rows, [slot.number for slot in damaged]


def _check(damaged: list[int], shard: str) -> None:
    from nstance.admin import errors

    if damaged:
        raise errors.CommandError(
            f"{len(damaged)} slots of shard {shard} are damaged or missing, the first is {damaged[0]}; "
            f"see `nstance-admin audit verify --shard {shard}`"
        )
