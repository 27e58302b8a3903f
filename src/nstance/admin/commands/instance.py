"""`instance`: list, show, create, delete, replace, drained, adopt, release."""

from typing import TYPE_CHECKING, Any

import click

from nstance.admin import options, output
from nstance.admin.commands.group import dry_run_flag, var_flag
from nstance.admin.help import Group
from nstance.admin.options import format_flag, name
from nstance.admin.reach import Reach, reach_flags

if TYPE_CHECKING:
    from nstance.admin.client import Client
    from nstance.admin.shard.asking import Answers

EXAMPLES = """\
nstance-admin instance list --group web --shard us-west-2a
nstance-admin instance show wrk-01jw51srryegh9snf9cmeh3k4q --all-shards
nstance-admin instance replace wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a --dry-run
"""


@click.group(cls=Group, examples=EXAMPLES)
def command() -> None:
    """Instances: the VMs of groups."""


instance_argument = click.argument("instance", type=options.instance)

LIST_EXAMPLES = """\
nstance-admin instance list --all-shards
nstance-admin instance list --group web --shard us-west-2a -o json
nstance-admin instance list --unknown --all-shards
"""
SHOW_EXAMPLES = """\
nstance-admin instance show wrk-01jw51srryegh9snf9cmeh3k4q --all-shards
"""
CREATE_EXAMPLES = """\
nstance-admin instance create --group web --shard us-west-2a
nstance-admin instance create --group web --instance-type large --var ROLE=test --shard us-west-2a
"""
DELETE_EXAMPLES = """\
nstance-admin instance delete wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a --dry-run
"""
DRAINED_EXAMPLES = """\
nstance-admin instance drained wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a
"""
ADOPT_EXAMPLES = """\
nstance-admin instance adopt wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a --dry-run
"""
RELEASE_EXAMPLES = """\
nstance-admin instance release wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a --dry-run
"""
REPLACE_EXAMPLES = """\
nstance-admin instance replace wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a
"""


@command.command("list", examples=LIST_EXAMPLES)
@click.option("--group", type=name, metavar="GROUP", help="Only of this group.")
@click.option("--deleted", is_flag=True, help="Also those that were deleted or failed lately.")
@click.option("--unknown", is_flag=True, help="Instead VMs with the shard's tags that no record knows.")
@format_flag
@reach_flags
def list_instances(reach: Reach, group: str | None, deleted: bool, unknown: bool, form: str) -> None:
    """List instances with state, age, whether they are ready, and what is out of the ordinary."""
    from nstance.admin.shard import asking, instances

    if unknown:
        _list_unknown(reach, group, form)
        return
    answers = asking.ask(
        reach, lambda client: instances.everything(client, group=group or "", deleted=deleted)
    ).forgive_absence()
    _show([(shard, status) for shard, found in answers.good for status in found], reach, form)
    answers.check()


@command.command(examples=SHOW_EXAMPLES)
@instance_argument
@format_flag
@reach_flags
def show(reach: Reach, instance: str, form: str) -> None:
    """Show everything about INSTANCE. With --all-shards: wherever it is."""
    from nstance.admin.shard import asking, records

    answers = asking.ask(reach, lambda client: client.call("GetInstanceStatus", instance_id=instance)).forgive_absence()
    for shard, status in answers.good:
        record = records.instance(shard, status)
        output.show_one(records.instance_lines(record) if form == "table" else record, form)
    answers.check()


@command.command(examples=CREATE_EXAMPLES)
@click.option("--group", type=name, required=True, metavar="GROUP", help="Whose template it is made from.")
@click.option("--instance-type", default="", metavar="TYPE", help="The provider's name; left out: the group's.")
@var_flag
@dry_run_flag
@format_flag
@reach_flags
def create(
    reach: Reach, group: str, instance_type: str, vars: tuple[tuple[str, str], ...], dry_run: bool, form: str
) -> None:
    """Make one instance on demand: on top of the group's size, never counted, never replaced."""
    from nstance.admin.shard import asking, fresh, groups

    async def work(client: "Client") -> Any:
        await groups.find(client, group)
        return await client.call(
            "CreateInstance",
            group=group,
            uuid=fresh.uuid(),
            instance_type=instance_type,
            vars=dict(vars),
            dry_run=dry_run,
        )

    answers = asking.ask(reach, work)
    if dry_run:
        _plan(answers, reach, form)
        return
    _show(answers.good, reach, form)
    answers.check()


@command.command(examples=DELETE_EXAMPLES)
@instance_argument
@dry_run_flag
@format_flag
@reach_flags
def delete(reach: Reach, instance: str, dry_run: bool, form: str) -> None:
    """Delete INSTANCE, drained first. If it counts, its group makes another one."""
    _on_one("DeleteInstance", reach, instance, dry_run, form)


@command.command(examples=REPLACE_EXAMPLES)
@instance_argument
@dry_run_flag
@format_flag
@reach_flags
def replace(reach: Reach, instance: str, dry_run: bool, form: str) -> None:
    """Make another instance in INSTANCE's place, then let it go."""
    _on_one("ReplaceInstance", reach, instance, dry_run, form)


@command.command(examples=DRAINED_EXAMPLES)
@instance_argument
@dry_run_flag
@format_flag
@reach_flags
def drained(reach: Reach, instance: str, dry_run: bool, form: str) -> None:
    """Say that INSTANCE, which is draining, is empty: it is deleted now and not at its deadline."""
    from nstance.admin.shard import asking, instances, plans

    answers = asking.ask(
        reach, lambda client: instances.say_drained(client, instance, dry_run=dry_run)
    ).forgive_absence()
    if dry_run:
        answers.good = [(shard, [instances.departure(status)]) for shard, status in answers.good]
        plans.show(answers, reach, form)
        return
    _show(answers.good, reach, form)
    answers.check()


@command.command(examples=ADOPT_EXAMPLES)
@instance_argument
@dry_run_flag
@format_flag
@reach_flags
def adopt(reach: Reach, instance: str, dry_run: bool, form: str) -> None:
    """Make a record for INSTANCE, whose VM runs with the shard's tags and has none.

    Its group must lack an instance: scale it up first. An agent that has not presented its certificate yet gets the time
    that a new instance has to register; after that the VM is replaced."""
    _on_one("AdoptInstance", reach, instance, dry_run, form)


@command.command(examples=RELEASE_EXAMPLES)
@instance_argument
@dry_run_flag
@format_flag
@reach_flags
def release(reach: Reach, instance: str, dry_run: bool, form: str) -> None:
    """Delete the VM of INSTANCE, which has the shard's tags and no record."""
    from nstance.admin.shard import asking

    answers = asking.ask(
        reach, lambda client: client.call("ReleaseInstance", instance_id=instance, dry_run=dry_run)
    ).forgive_absence()
    if dry_run:
        _plan(answers, reach, form)
        return
    output.show(
        [{"shard": shard, "released": instance} for shard, _ in answers.good], form, columns=("shard", "released")
    )
    answers.check()


def _list_unknown(reach: Reach, group: str | None, form: str) -> None:
    from nstance.admin.shard import asking, fresh, records, unknown

    answers = asking.ask(reach, unknown.everything)
    found = [unknown.record(shard, vm) for shard, vms in answers.good for vm in vms if group in (None, vm.group)]
    now = fresh.now()
    rows = [unknown.row(record, now=now) for record in found] if form == "table" else found
    columns = records.columns(unknown.COLUMNS, several=reach.several)
    output.show(rows, form, columns=columns, whole=("shard", "instance", "age"))
    answers.check()


def _on_one(rpc: str, reach: Reach, instance: str, dry_run: bool, form: str) -> None:
    from nstance.admin.shard import asking

    answers = asking.ask(
        reach, lambda client: client.call(rpc, instance_id=instance, dry_run=dry_run)
    ).forgive_absence()
    if dry_run:
        _plan(answers, reach, form)
        return
    _show(answers.good, reach, form)
    answers.check()


def _plan(answers: "Answers[Any]", reach: Reach, form: str) -> None:
    from nstance.admin.shard import plans

    answers.good = [(shard, status.plan) for shard, status in answers.good]
    plans.show(answers, reach, form)


def _show(found: list[tuple[Any, Any]], reach: Reach, form: str) -> None:
    from nstance.admin.shard import fresh, records

    all_records = [records.instance(shard, status) for shard, status in found]
    now = fresh.now()
    rows = [records.instance_row(record, now=now) for record in all_records] if form == "table" else all_records
    columns = records.columns(records.INSTANCE_COLUMNS, several=reach.several)
    output.show(rows, form, columns=columns, whole=("shard", "instance", "age"))
