"""`group`: list, show, plan, create, update, scale, delete, pause, resume. Rollouts are in `group_rollout`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from nstance.admin import output
from nstance.admin.commands.arguments import (
    group_argument,
    instance_type_option,
    optional_group_argument,
    template_option,
    wait_flags,
)
from nstance.admin.help import Choice, Group
from nstance.admin.options import Function, count, decorated
from nstance.admin.shard_flags import ShardSelection, shard_flags

if TYPE_CHECKING:
    from nstance.admin.client import Client
    from nstance.admin.shard.groups import GroupChange

EXAMPLES = """\
nstance-admin group create web --template worker --size 3 --shard us-west-2a
nstance-admin group scale web 20 --shard us-west-2a --dry-run
nstance-admin group update web --var GREETING=hi --shard us-west-2a
nstance-admin group pause --all-groups --all-shards
"""


@click.group(cls=Group, examples=EXAMPLES)
def command() -> None:
    """Groups of equal instances, each with a desired size.

    The shards come from --servers or NSTANCE_ADMIN_SERVERS, such as us-west-2a=10.0.0.1:8993."""


dry_run_flag = click.option("--dry-run", is_flag=True, help="Show what would be done and why; change nothing.")


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"expected NAME=VALUE, found {text[:64]!r}")
    return key, value


var_flag = click.option(
    "--var", "vars", type=_variable, multiple=True, metavar="NAME=VALUE", help="A var for the templates; repeatable."
)
_SETTINGS = (
    click.option("--size", type=count, metavar="N", help="Number of instances."),
    instance_type_option("The provider's name; '' for the template's."),
    click.option("--subnet-pool", type=str, metavar="POOL", help="Where instances are created; '' for the template's."),
    var_flag,
    click.option("--drain-timeout", metavar="DURATION", help="The longest wait for a drain; 0: no wait."),
    click.option("--max-surge", type=count, metavar="N", help="VMs above the size during a rollout."),
    click.option("--max-unavailable", type=count, metavar="N", help="Ready instances missing during a rollout."),
    click.option("--order", type=Choice(["parallel", "serial"]), help="serial: one instance at a time."),
    click.option("--settle", metavar="DURATION", help="Serial: time that one must be ready before the next."),
    click.option("--canary", type=count, metavar="N", help="Instances to replace before the rollout pauses."),
    click.option("--pause-after-canary", metavar="DURATION|wait|stop", help="How long it pauses."),
    click.option("--max-failures", type=count, metavar="N", help="New instances that may fail before it halts."),
    click.option("--on-failure", type=Choice(["halt", "rollback"]), help="What to do then."),
    click.option("--load-balancer", "load_balancers", multiple=True, metavar="NAME", help="Repeatable; replaces all."),
    click.option("--args", metavar="JSON", help="Provider arguments, a JSON object."),
)


def _settings_flags(command: Function) -> Function:
    return decorated(command, _SETTINGS)


_UNSET = (
    click.option("--unset-size", is_flag=True, help="Reset the size to the config file's."),
    click.option("--unset-instance-type", is_flag=True, help="Reset the instance type to the config file's."),
    click.option(
        "--unset-var", "unset_vars", multiple=True, metavar="NAME", help="Reset a var to the config file's; repeatable."
    ),
)


def _unset_flags(command: Function) -> Function:
    return decorated(command, _UNSET)


def _change(*, vars: tuple[tuple[str, str], ...], **settings: Any) -> "GroupChange":
    from nstance.admin.shard.groups import GroupChange

    change = GroupChange(vars=dict(vars), **settings)
    for name in change.unset:
        if settings[name] is not None:
            flag = name.replace("_", "-")
            raise click.UsageError(f"expected either --{flag} or --unset-{flag}")
    return change


# ---- reading

LIST_EXAMPLES = """\
nstance-admin group list --all-shards
nstance-admin group list --shard us-west-2a -o json
"""
SHOW_EXAMPLES = """\
nstance-admin group show web --shard us-west-2a
nstance-admin group show web --all-shards -o yaml
"""
PLAN_EXAMPLES = """\
nstance-admin group plan web --shard us-west-2a
nstance-admin group plan web --instance-type large --shard us-west-2a
nstance-admin group plan web --unset-size --shard us-west-2a
"""


@command.command("list", examples=LIST_EXAMPLES)
@shard_flags
def list_groups(selection: ShardSelection) -> None:
    """List groups with their desired, actual and ready sizes."""
    from nstance.admin.shard import fanout, groups, printing

    printing.print_groups(selection, fanout.call_shards(selection, groups.list_groups).flatten())


@command.command(examples=SHOW_EXAMPLES)
@group_argument
@shard_flags
def show(selection: ShardSelection, group: str) -> None:
    """Show all details of GROUP. With --all-shards: in every shard that has it."""
    from nstance.admin.shard import fanout, groups, printing

    answers = fanout.call_shards(selection, lambda client: groups.find(client, group))
    printing.print_group_details(selection, answers.ignore_not_found())


@command.command(examples=PLAN_EXAMPLES)
@group_argument
@template_option("Also for a group that does not exist yet.")
@_settings_flags
@_unset_flags
@shard_flags
def plan(selection: ShardSelection, group: str, **settings: Any) -> None:
    """Show what will be done to GROUP and why, as it is or with other settings. Changes nothing."""
    from nstance.admin.shard import fanout, groups, printing

    change = _change(**settings)
    answers = fanout.call_shards(selection, lambda client: groups.plan(client, group, change)).ignore_not_found()
    output.warn(warning for _, answer in answers.results for warning in answer.warnings)
    printing.print_rollouts(selection, answers)
    paused = any(answer.paused for _, answer in answers.results)
    printing.print_plan(selection, answers.map(lambda answer: answer.actions), paused=paused)


# ---- changing

CREATE_EXAMPLES = """\
nstance-admin group create web --template worker --size 3 --shard us-west-2a
nstance-admin group create web --template worker --size 3 --var GREETING=hello --shard us-west-2a --dry-run
"""
UPDATE_EXAMPLES = """\
nstance-admin group update web --var GREETING=hi --shard us-west-2a
nstance-admin group update web --instance-type large --shard us-west-2a --dry-run
nstance-admin group update web --instance-type large --shard us-west-2a --wait --within 30m
nstance-admin group update web --unset-size --unset-instance-type --unset-var GREETING --shard us-west-2a
"""
SCALE_EXAMPLES = """\
nstance-admin group scale web 20 --shard us-west-2a --wait
nstance-admin group scale web 0 --all-shards --dry-run
"""
DELETE_EXAMPLES = """\
nstance-admin group delete web --shard us-west-2a --dry-run
nstance-admin group delete web --shard us-west-2a
"""


@command.command(examples=CREATE_EXAMPLES)
@group_argument
@template_option("The template of its instances.", required=True)
@_settings_flags
@wait_flags
@dry_run_flag
@shard_flags
def create(selection: ShardSelection, group: str, **settings: Any) -> None:
    """Create GROUP. Without --size it gets its template's size."""
    from nstance.admin.shard import groups

    upsert = _Upsert.take(group, settings)
    change = _change(**settings)
    upsert.run(selection, lambda client: groups.create(client, group, change, dry_run=upsert.dry_run))


@command.command(examples=UPDATE_EXAMPLES)
@group_argument
@template_option("The template of its instances.")
@_settings_flags
@_unset_flags
@wait_flags
@dry_run_flag
@shard_flags
def update(selection: ShardSelection, group: str, **settings: Any) -> None:
    """Change GROUP. Settings that are not given stay as they are.

    New vars reach running instances as files. A change of what instances are made of (template, type, ...) replaces them
    in a rollout. A static group accepts only size, instance type and vars; they override the config file until --unset-…
    resets them."""
    from nstance.admin.shard import groups

    upsert = _Upsert.take(group, settings)
    change = _change(**settings)
    if change.is_empty:
        raise click.UsageError("nothing to change: give at least one setting, such as --size or --var")
    upsert.run(
        selection,
        lambda client: groups.change(client, group, change.apply, unset=change.unset, dry_run=upsert.dry_run),
    )


@command.command(examples=SCALE_EXAMPLES)
@group_argument
@click.argument("size", type=count)
@wait_flags
@dry_run_flag
@shard_flags
def scale(selection: ShardSelection, group: str, size: int, **settings: Any) -> None:
    """Set the number of instances of GROUP to SIZE, in each selected shard."""
    from nstance.admin.shard import groups

    upsert = _Upsert.take(group, settings)
    change = groups.GroupChange(size=size, vars={})
    upsert.run(selection, lambda client: groups.change(client, group, change.apply, dry_run=upsert.dry_run))


@dataclass(frozen=True, slots=True)
class _Upsert:
    """How a group is changed: for real or not, and whether the result is waited for."""

    group: str
    instance_type: str | None
    dry_run: bool
    wait: bool
    within: float

    @classmethod
    def take(cls, group: str, flags: dict[str, Any]) -> "_Upsert":
        """Removes its own flags from `flags`."""
        return cls(group, flags.get("instance_type"), *(flags.pop(each) for each in ("dry_run", "wait", "within")))

    def run(self, selection: ShardSelection, work: "Callable[[Client], Awaitable[Any]]") -> None:
        from nstance.admin.shard import fanout, groups, printing

        async def check_and_work(client: "Client") -> Any:
            if self.instance_type:
                await groups.warn_about_type(client, self.instance_type)
            return await work(client)

        answers = fanout.call_shards(selection, check_and_work)
        if self.dry_run:
            paused = any(answer.group.paused for _, answer in answers.results)
            printing.print_rollouts(selection, answers)
            printing.print_plan(selection, answers.map(lambda answer: answer.plan), paused=paused)
            return
        printing.print_groups(selection, answers.map(lambda answer: answer.group))
        if self.wait:
            from nstance.admin.commands.wait import until_stable

            until_stable(selection, [self.group], within=self.within)


@command.command(examples=DELETE_EXAMPLES)
@group_argument
@dry_run_flag
@shard_flags
def delete(selection: ShardSelection, group: str, dry_run: bool) -> None:
    """Drain and delete GROUP and its instances. A static group is removed from the config instead."""
    from nstance.admin.shard import fanout, groups, printing

    async def work(client: "Client") -> Any:
        return await groups.delete(client, group, dry_run=dry_run)

    answers = fanout.call_shards(selection, work)
    if dry_run:
        printing.print_plan(selection, answers)
        return
    if selection.is_table:
        for shard, _ in answers.results:
            output.note(f"deleted group {group} of shard {shard}; its instances are being deleted")
    else:
        rows = [{"shard": shard, "group": group, "deleted": True} for shard, _ in answers.results]
        output.print_rows(rows, selection.form, columns=())
    answers.check()


# ---- pausing


def _pause_command(verb: str, help: str) -> None:
    examples = (
        f"nstance-admin group {verb} web --shard us-west-2a\nnstance-admin group {verb} --all-groups --all-shards\n"
    )

    @command.command(verb, help=help, examples=examples)
    @optional_group_argument
    @click.option("--all-groups", is_flag=True, help="All groups of the tenant, instead of one.")
    @dry_run_flag
    @shard_flags
    def run(selection: ShardSelection, group: str | None, all_groups: bool, dry_run: bool) -> None:
        if all_groups == (group is not None):
            raise click.UsageError("expected either a group or --all-groups")
        from nstance.admin.shard import fanout, groups, printing

        async def work(client: "Client") -> Any:
            if group is not None:
                await groups.find(client, group)
            return await client.call(f"{verb.capitalize()}Group", key=group or "", dry_run=dry_run)

        answers = fanout.call_shards(selection, work)
        if dry_run and verb == "resume":  # a pause plans nothing
            printing.print_plan(selection, answers.map(lambda answer: answer.plan), name_groups=all_groups)
            return
        if dry_run:
            output.note("dry run: nothing was changed")
        printing.print_groups(selection, answers.map(lambda answer: answer.groups).flatten())


_pause_command("pause", "Pause GROUP: no instance is created, replaced or deleted until it is resumed.")
_pause_command("resume", "Resume GROUP after a pause.")
