"""`instance`: list, show, logs, create, delete, replace, drained, adopt, release."""

from typing import TYPE_CHECKING, Any

import click

from nstance.admin import output
from nstance.admin.commands.arguments import group_option, instance_argument, instance_type_option
from nstance.admin.commands.group import dry_run_flag, var_flag
from nstance.admin.help import Group
from nstance.admin.shard_flags import ShardSelection, shard_flags

if TYPE_CHECKING:
    from nstance.admin.client import Client

EXAMPLES = """\
nstance-admin instance list --group web --shard us-west-2a
nstance-admin instance show wrk-01jw51srryegh9snf9cmeh3k4q --all-shards
nstance-admin instance replace wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a --dry-run
"""
SHOW_EXAMPLES = """\
nstance-admin instance show wrk-01jw51srryegh9snf9cmeh3k4q --all-shards
nstance-admin instance show 01jw51 --shard us-west-2a
nstance-admin instance show 01jw51 --shard us-west-2a -o jsonpath={.report.memory_percent}
"""
LOGS_EXAMPLES = """\
nstance-admin instance logs wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a
nstance-admin instance logs 01jw51 --console --all-shards
nstance-admin instance logs 01jw51 --follow --shard us-west-2a
"""
LIST_EXAMPLES = """\
nstance-admin instance list --all-shards
nstance-admin instance list --group web --shard us-west-2a -o json
nstance-admin instance list --unknown --all-shards
"""
CREATE_EXAMPLES = """\
nstance-admin instance create --group web --shard us-west-2a
nstance-admin instance create --group web --instance-type large --var ROLE=test --shard us-west-2a
"""
_EXAMPLE = "nstance-admin instance {} wrk-01jw51srryegh9snf9cmeh3k4q --shard us-west-2a\n"


@click.group(cls=Group, examples=EXAMPLES)
def command() -> None:
    """Instances: the VMs of groups."""


@command.command("list", examples=LIST_EXAMPLES)
@group_option("Only of this group.")
@click.option("--deleted", is_flag=True, help="Include recently deleted or failed ones.")
@click.option("--unknown", is_flag=True, help="List VMs with the shard's tags that have no record instead.")
@shard_flags
def list_instances(selection: ShardSelection, group: str | None, deleted: bool, unknown: bool) -> None:
    """List instances with their state, readiness, age, and notes about what needs attention."""
    from nstance.admin.shard import fanout, instances, printing, unknown_vms

    if unknown:
        answers = fanout.call_shards(selection, unknown_vms.list_unknown_vms).flatten()
        printing.print_unknown_vms(selection, answers, group=group)
        return
    answers = fanout.call_shards(
        selection, lambda client: instances.list_instances(client, group=group or "", deleted=deleted)
    )
    printing.print_instances(selection, answers.ignore_not_found().flatten())


@command.command(examples=SHOW_EXAMPLES)
@instance_argument
@shard_flags
def show(selection: ShardSelection, instance: str) -> None:
    """Show all details of INSTANCE: its state, its load, memory and disk as its agent reported them last, its files, and
    its life from the intent to the deletion with the time between the steps.

    INSTANCE is an ID, or a beginning or end of one that is unique. With --all-shards: in the shard that has it."""
    from nstance.admin.shard import addressing, life, printing

    printing.print_instance_details(selection, addressing.call_instance(selection, instance, life.load))


@command.command(examples=LOGS_EXAMPLES)
@instance_argument
@click.option("--console", is_flag=True, help="Only the VM's console output.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new events until Ctrl-C.")
@shard_flags
def logs(selection: ShardSelection, instance: str, console: bool, follow: bool) -> None:
    """Show what the server has about INSTANCE: its events with their reasons, and the VM's console output.

    The server reads the console when it gives up on a VM whose agent never registered, if the provider has one. It keeps
    no logs of a running VM: look there, or in what collects your logs."""
    from nstance.admin.shard import event_stream, history

    if console and follow:
        raise click.UsageError("expected either --console or --follow")
    if console:
        event_stream.show_console(selection, instance)
    else:
        query = history.EventQuery(instance=instance, limit=history.PAGE)
        event_stream.show(selection, query, follow=follow)


@command.command(examples=CREATE_EXAMPLES)
@group_option("The group whose template it uses.", required=True)
@instance_type_option("The provider's name; default: the group's.", default="")
@var_flag
@dry_run_flag
@shard_flags
def create(
    selection: ShardSelection, group: str, instance_type: str, vars: tuple[tuple[str, str], ...], dry_run: bool
) -> None:
    """Create one on-demand instance: on top of the group's size, and never replaced."""
    from nstance.admin.shard import fanout, groups, instances, printing

    async def work(client: "Client") -> Any:
        await groups.find(client, group)
        if instance_type:
            await groups.warn_about_type(client, instance_type)
        return await client.call(
            "CreateInstance",
            group=group,
            uuid=instances.new_uuid(),
            instance_type=instance_type,
            vars=dict(vars),
            dry_run=dry_run,
        )

    answers = fanout.call_shards(selection, work)
    if dry_run:
        printing.print_plan(selection, answers.map(lambda answer: answer.plan))
    else:
        printing.print_instances(selection, answers)


def _instance_command(verb: str, help: str) -> None:
    """A command that makes one call about one instance and prints its new status, or the plan."""

    @command.command(verb, help=help, examples=_EXAMPLE.format(verb))
    @instance_argument
    @dry_run_flag
    @shard_flags
    def run(selection: ShardSelection, instance: str, dry_run: bool) -> None:
        from nstance.admin.shard import addressing, printing

        async def work(client: "Client", id: str) -> Any:
            released.append(id)
            return await client.call(f"{verb.capitalize()}Instance", instance_id=id, dry_run=dry_run)

        released: list[str] = []
        list_ids = addressing.unknown_vm_ids if verb in ("adopt", "release") else addressing.known_ids
        answers = addressing.call_instance(selection, instance, work, list_ids=list_ids)
        if dry_run:
            printing.print_plan(selection, answers.map(lambda answer: answer.plan))
        elif verb == "release":
            rows = [{"shard": shard, "released": released[0]} for shard, _ in answers.results]
            output.print_rows(rows, selection.form, columns=("shard", "released"))
            answers.check()
        else:
            printing.print_instances(selection, answers)


_instance_command("delete", "Drain and delete INSTANCE. Its group creates another one if it counts toward the size.")
_instance_command("replace", "Create another instance in place of INSTANCE, then delete INSTANCE.")
_instance_command(
    "adopt",
    """Create a record for INSTANCE, whose VM has the shard's tags but no record.

    Its group must be missing an instance: scale it up first. If the agent has not presented its certificate yet, it gets
    the time that a new instance has to register; then the VM is replaced.""",
)
_instance_command("release", "Delete the VM of INSTANCE, which has the shard's tags but no record.")


@command.command(examples=_EXAMPLE.format("drained"))
@instance_argument
@dry_run_flag
@shard_flags
def drained(selection: ShardSelection, instance: str, dry_run: bool) -> None:
    """Acknowledge that INSTANCE is drained: it is deleted now instead of at its deadline."""
    from nstance.admin.shard import addressing, instances, printing

    answers = addressing.call_instance(
        selection, instance, lambda client, id: instances.acknowledge_drained(client, id, dry_run=dry_run)
    )
    if dry_run:
        printing.print_plan(selection, answers.map(lambda status: [instances.planned_deletion(status)]))
    else:
        printing.print_instances(selection, answers)
