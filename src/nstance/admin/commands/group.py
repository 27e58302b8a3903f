"""`group`: list, show, create, update, scale, delete, plan, pause, resume. About rollouts: see `group_rollout`."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from nstance.admin import output
from nstance.admin.help import Group
from nstance.admin.options import Function, count, format_flag, name
from nstance.admin.reach import Reach, reach_flags

if TYPE_CHECKING:
    from nstance.admin.client import Client
    from nstance.admin.shard.asking import Answers
    from nstance.admin.shard.groups import Wish

EXAMPLES = """\
nstance-admin group create web --template worker --size 3 --shard us-west-2a
nstance-admin group scale web 20 --shard us-west-2a --dry-run
nstance-admin group update web --var GREETING=hi --shard us-west-2a
nstance-admin group pause --all-groups --all-shards
"""


@click.group(cls=Group, examples=EXAMPLES)
def command() -> None:
    """Groups: wished numbers of equal instances.

    The shards come from --servers or NSTANCE_ADMIN_SERVERS, such as us-west-2a=10.0.0.1:8993."""


group_argument = click.argument("group", type=name)
dry_run_flag = click.option("--dry-run", is_flag=True, help="Show what would be done, with reasons, and do nothing.")


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"expected NAME=VALUE, found {text[:64]!r}")
    return key, value


var_flag = click.option(
    "--var", "vars", type=_variable, multiple=True, metavar="NAME=VALUE", help="A var for the templates; repeatable."
)
_WISH = (
    click.option("--size", type=count, metavar="N", help="Number of instances."),
    click.option("--instance-type", metavar="TYPE", help="The provider's name; '' for the template's."),
    click.option("--subnet-pool", type=str, metavar="POOL", help="Where instances are made; '' for the template's."),
    var_flag,
    click.option("--drain-timeout", metavar="DURATION", help="How long a drain is waited for; 0: not at all."),
    click.option("--max-surge", type=count, metavar="N", help="VMs above the size during a rollout."),
    click.option("--max-unavailable", type=count, metavar="N", help="Ready instances missing during a rollout."),
    click.option("--order", type=click.Choice(["parallel", "serial"]), help="serial: one instance after the other."),
    click.option("--settle", metavar="DURATION", help="Serial: ready for so long before the next one."),
    click.option("--canary", type=count, metavar="N", help="Instances to replace before the rollout pauses."),
    click.option("--pause-after-canary", metavar="DURATION|wait|stop", help="How long it pauses."),
    click.option("--max-failures", type=count, metavar="N", help="New instances that may fail before it halts."),
    click.option("--on-failure", type=click.Choice(["halt", "rollback"]), help="What follows then."),
    click.option("--load-balancer", "load_balancers", multiple=True, metavar="NAME", help="Repeatable; replaces all."),
    click.option("--args", metavar="JSON", help="Provider arguments, a JSON object."),
)


def _wish_flags(command: Function) -> Function:
    for option in reversed(_WISH):
        command = option(command)
    return command


def _desired(*, vars: tuple[tuple[str, str], ...], **said: Any) -> "Wish":
    from nstance.admin.shard.groups import Wish

    return Wish(vars=dict(vars), **said)


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
"""


@command.command("list", examples=LIST_EXAMPLES)
@format_flag
@reach_flags
def list_groups(reach: Reach, form: str) -> None:
    """List groups with their wished, actual and ready sizes."""
    from nstance.admin.shard import asking, groups

    answers = asking.ask(reach, groups.everything)
    show_groups([(shard, group) for shard, found in answers.good for group in found], reach, form)
    answers.check()


@command.command(examples=SHOW_EXAMPLES)
@group_argument
@format_flag
@reach_flags
def show(reach: Reach, group: str, form: str) -> None:
    """Show everything about GROUP. With --all-shards: wherever it is."""
    from nstance.admin.shard import asking, groups, records

    answers = asking.ask(reach, lambda client: groups.find(client, group)).forgive_absence()
    found = [records.group(shard, status) for shard, status in answers.good]
    if form != "table" and reach.several:
        output.show(found, form, columns=())
    else:
        for record in found:
            output.show_one(record if form != "table" else records.group_lines(record), form)
    answers.check()


@command.command(examples=PLAN_EXAMPLES)
@group_argument
@click.option("--template", metavar="TEMPLATE", help="Also for a group that is not there yet.")
@_wish_flags
@format_flag
@reach_flags
def plan(reach: Reach, group: str, form: str, **said: Any) -> None:
    """Show what will be done to GROUP, or would be if it were changed, and why. Changes nothing."""
    from nstance.admin.shard import asking, groups

    desired = _desired(**said)
    answers = asking.ask(reach, lambda client: groups.plan(client, group, desired)).forgive_absence()
    paused = any(answer.paused for _, answer in answers.good)
    output.warn(warning for _, answer in answers.good for warning in answer.warnings)
    _note_rollouts(answers, form)
    answers.good = [(shard, answer.actions) for shard, answer in answers.good]
    _show_plan(answers, reach, form, paused=paused)


# ---- changing

CREATE_EXAMPLES = """\
nstance-admin group create web --template worker --size 3 --shard us-west-2a
nstance-admin group create web --template worker --size 3 --var GREETING=hello --shard us-west-2a --dry-run
"""
UPDATE_EXAMPLES = """\
nstance-admin group update web --var GREETING=hi --shard us-west-2a
nstance-admin group update web --instance-type large --shard us-west-2a --dry-run
nstance-admin group update web --unset-size --unset-instance-type --unset-var GREETING --shard us-west-2a
"""
SCALE_EXAMPLES = """\
nstance-admin group scale web 20 --shard us-west-2a
nstance-admin group scale web 0 --all-shards --dry-run
"""
DELETE_EXAMPLES = """\
nstance-admin group delete web --shard us-west-2a --dry-run
nstance-admin group delete web --shard us-west-2a
"""
PAUSE_EXAMPLES = """\
nstance-admin group pause web --shard us-west-2a
nstance-admin group pause --all-groups --all-shards
"""
RESUME_EXAMPLES = """\
nstance-admin group resume web --shard us-west-2a
nstance-admin group resume --all-groups --all-shards
"""


@command.command(examples=CREATE_EXAMPLES)
@group_argument
@click.option("--template", required=True, metavar="TEMPLATE", help="What its instances are made from.")
@_wish_flags
@dry_run_flag
@format_flag
@reach_flags
def create(reach: Reach, group: str, dry_run: bool, form: str, **said: Any) -> None:
    """Make GROUP. Without --size it has the size that its template says."""
    from nstance.admin.shard import groups

    desired = _desired(**said)
    _upsert(reach, form, dry_run, lambda client: groups.create(client, group, desired, dry_run=dry_run))


@command.command(examples=UPDATE_EXAMPLES)
@group_argument
@click.option("--template", metavar="TEMPLATE", help="What its instances are made from.")
@_wish_flags
@click.option("--unset-size", is_flag=True, help="Give the size back to the config file.")
@click.option("--unset-instance-type", is_flag=True, help="Give the instance type back to the config file.")
@click.option(
    "--unset-var", "unset_vars", multiple=True, metavar="NAME", help="Give a var back to the config file; repeatable."
)
@dry_run_flag
@format_flag
@reach_flags
def update(reach: Reach, group: str, dry_run: bool, form: str, **said: Any) -> None:
    """Change GROUP. What is not named stays as it is.

    New vars reach running instances as files. What an instance is made of (template, type, ...) rotates them, one by one.
    A static group takes only size, instance type and vars. They override the config file until --unset-… gives them back."""
    from nstance.admin.shard import groups

    desired = _desired(**said)
    if desired.empty:
        raise click.UsageError("nothing to change: name at least one setting, such as --size or --var")
    for flag, both in (("size", desired.unset_size), ("instance-type", desired.unset_instance_type)):
        if both and said[flag.replace("-", "_")] is not None:
            raise click.UsageError(f"expected either --{flag} or --unset-{flag}")
    _upsert(
        reach,
        form,
        dry_run,
        lambda client: groups.change(client, group, desired.apply, unset=desired.unset, dry_run=dry_run),
    )


@command.command(examples=SCALE_EXAMPLES)
@group_argument
@click.argument("size", type=count)
@dry_run_flag
@format_flag
@reach_flags
def scale(reach: Reach, group: str, size: int, dry_run: bool, form: str) -> None:
    """Set the number of instances of GROUP to SIZE, in each shard that is asked."""
    from nstance.admin.shard import groups

    desired = groups.Wish(size=size, vars={})
    _upsert(reach, form, dry_run, lambda client: groups.change(client, group, desired.apply, dry_run=dry_run))


@command.command(examples=DELETE_EXAMPLES)
@group_argument
@dry_run_flag
@format_flag
@reach_flags
def delete(reach: Reach, group: str, dry_run: bool, form: str) -> None:
    """Delete GROUP and its instances, drained first. A static group is taken out of the config instead."""
    from nstance.admin.shard import asking, groups

    async def work(client: "Client") -> Any:
        found = await groups.find(client, group)
        answer = await client.call("DeleteGroup", key=group, etag=found.etag, dry_run=dry_run)
        return answer.plan if dry_run else found

    answers = asking.ask(reach, work)
    if dry_run:
        _show_plan(answers, reach, form)
        return
    if form == "table":
        for shard, _ in answers.good:
            output.note(f"deleted group {group} of shard {shard}; its instances leave now")
    else:
        output.show([{"shard": shard, "group": group, "deleted": True} for shard, _ in answers.good], form, columns=())
    answers.check()


def _some_or_all(command: Function) -> Function:
    everything = click.option("--all-groups", is_flag=True, help="All groups of the tenant, instead of one.")
    return click.argument("group", type=name, required=False)(everything(command))


@command.command(examples=PAUSE_EXAMPLES)
@_some_or_all
@dry_run_flag
@format_flag
@reach_flags
def pause(reach: Reach, group: str | None, all_groups: bool, dry_run: bool, form: str) -> None:
    """Stop everything that Nstance does to GROUP: nothing is made, replaced or deleted until it is resumed."""
    _pause("PauseGroup", reach, group, all_groups, dry_run, form)


@command.command(examples=RESUME_EXAMPLES)
@_some_or_all
@dry_run_flag
@format_flag
@reach_flags
def resume(reach: Reach, group: str | None, all_groups: bool, dry_run: bool, form: str) -> None:
    """Go on with GROUP where it was paused."""
    _pause("ResumeGroup", reach, group, all_groups, dry_run, form)


def _pause(rpc: str, reach: Reach, group: str | None, all_groups: bool, dry_run: bool, form: str) -> None:
    if all_groups == (group is not None):
        raise click.UsageError("expected either a group or --all-groups")
    from nstance.admin.shard import asking, groups, plans

    async def work(client: "Client") -> Any:
        if group is not None:
            await groups.find(client, group)
        answer = await client.call(rpc, key=group or "", dry_run=dry_run)
        return answer.plan if dry_run and rpc == "ResumeGroup" else answer.groups

    answers = asking.ask(reach, work)
    if dry_run and rpc == "ResumeGroup":
        plans.show(answers, reach, form, groups=all_groups)
        return
    show_groups([(shard, status) for shard, found in answers.good for status in found], reach, form)
    if dry_run:
        output.note("dry run: nothing was changed")
    answers.check()


def _upsert(reach: Reach, form: str, dry_run: bool, work: "Callable[[Client], Awaitable[Any]]") -> None:
    from nstance.admin.shard import asking

    answers = asking.ask(reach, work)
    if dry_run:
        paused = any(answer.group.paused for _, answer in answers.good)
        _note_rollouts(answers, form)
        answers.good = [(shard, answer.plan) for shard, answer in answers.good]
        _show_plan(answers, reach, form, paused=paused)
        return
    show_groups([(shard, answer.group) for shard, answer in answers.good], reach, form)
    answers.check()


def show_groups(found: list[tuple[Any, Any]], reach: Reach, form: str) -> None:
    from nstance.admin.shard import records

    all_records = [records.group(shard, status) for shard, status in found]
    rows = [records.group_row(record) for record in all_records] if form == "table" else all_records
    columns = records.columns(records.GROUP_COLUMNS, several=reach.several)
    output.show(rows, form, columns=columns, whole=("shard", "group"))


def _note_rollouts(answers: "Answers[Any]", form: str) -> None:
    from nstance.admin.shard import rollouts

    if form == "table":
        for _, answer in answers.good:
            rollouts.note(answer.rollout)


def _show_plan(answers: "Answers[Any]", reach: Reach, form: str, *, paused: bool = False) -> None:
    from nstance.admin.shard import plans

    plans.show(answers, reach, form, paused=paused)
