"""Prints what shards answered: groups, instances, unknown VMs, plans. Failed shards come last and set the exit code."""

from collections.abc import Callable, Sequence
from typing import Any

from nstance.admin import output
from nstance.admin.shard import costs, life, records, unknown_vms
from nstance.admin.shard.fanout import Answers
from nstance.admin.shard.records import Record
from nstance.admin.shard_flags import ShardSelection
from nstance.model.counts import count


def print_rows(
    selection: ShardSelection,
    found: Sequence[Record],
    *,
    columns: Sequence[str],
    unbroken: Sequence[str] = (),
    to_row: Callable[[Record], Record] | None = None,
) -> None:
    """`to_row` makes the row of a table from a record. The shard is a column where there may be several."""
    rows = list(map(to_row, found)) if to_row is not None and selection.is_table else found
    shard = ("shard",) if selection.several else ()
    output.print_rows(rows, selection.form, columns=(*shard, *columns), unbroken=("shard", *unbroken))


def print_groups(selection: ShardSelection, answers: Answers[Any]) -> None:
    found = [records.group(shard, status) for shard, status in answers.results]
    has_prices = any(each["cost"] is not None for each in found)
    columns = [name for name in records.GROUP_COLUMNS if has_prices or name != "cost"]
    print_rows(selection, found, columns=columns, unbroken=("group", "cost"), to_row=records.group_row)
    answers.check()


def print_instances(selection: ShardSelection, answers: Answers[Any]) -> None:
    now = output.now()
    found = [records.instance(shard, status) for shard, status in answers.results]
    print_rows(
        selection,
        found,
        columns=records.INSTANCE_COLUMNS,
        unbroken=("instance", "age"),
        to_row=lambda record: records.instance_row(record, now=now),
    )
    answers.check()


def print_unknown_vms(selection: ShardSelection, answers: Answers[Any], *, group: str | None) -> None:
    now = output.now()
    found = [unknown_vms.UNKNOWN_VM.fill(vm, shard=shard) for shard, vm in answers.results if group in (None, vm.group)]
    print_rows(
        selection,
        found,
        columns=unknown_vms.COLUMNS,
        unbroken=("instance", "age"),
        to_row=lambda record: unknown_vms.row(record, now=now),
    )
    answers.check()


def print_group_details(selection: ShardSelection, answers: Answers[Any]) -> None:
    """A line for each field; as JSON or YAML a list if --all-shards was given."""
    found = [records.group(shard, status) for shard, status in answers.results]
    if not selection.is_table and selection.several:
        output.print_rows(found, selection.form, columns=())
    else:
        for record in found:
            output.print_record(records.group_lines(record) if selection.is_table else record, selection.form)
    answers.check()


def print_instance_details(selection: ShardSelection, answers: Answers[life.Life]) -> None:
    now = output.now()
    for shard, found in answers.results:
        record = life.record(shard, found)
        output.print_record(life.lines(record) if selection.is_table else record, selection.form)
        if selection.is_table:
            steps = life.timeline_lines(record["timeline"], state=record["state"], now=now)
            output.print_lines(steps, indent=life.INDENT)
    answers.check()


def print_plan(
    selection: ShardSelection, answers: Answers[Any], *, paused: bool = False, name_groups: bool = False
) -> None:
    """`answers` are lists of planned actions. `paused`: they run only after the group is resumed; `name_groups`: they may
    be of several groups."""
    actions = [each for shard, plan in answers.results for each in records.actions(shard, plan)]
    if not selection.is_table:
        output.print_rows(actions, selection.form, columns=())
    elif actions:
        columns = (("group",) if name_groups else ()) + records.PLAN_COLUMNS
        rows = records.plan_rows(actions)
        print_rows(selection, rows, columns=columns, unbroken=("group", "instance", "action"))
    if answers.results:
        if paused:
            output.note("the group is paused: these actions run after it is resumed")
        output.note("nothing was changed" if actions else "no actions are needed; nothing was changed")
    answers.check()


def print_rollouts(selection: ShardSelection, answers: Answers[Any]) -> None:
    """What remains of each rollout and what the plan costs, in sentences."""
    for shard, answer in answers.results if selection.is_table else ():
        of_shard = f" of shard {shard}" if selection.several else ""
        if answer.rollout.instances:
            _print_rollout(answer.rollout, of_shard)
        if answer.HasField("cost"):
            output.note(f"cost{of_shard}: {costs.plan_line(costs.COST_PLAN.fill(answer.cost, shard=shard))}")


def _print_rollout(plan: Any, of_shard: str) -> None:
    pace = "one at a time" if plan.order == "serial" else f"at most {plan.at_once} at a time"
    estimate = records.age(plan.estimate_ms / 1000)
    duration = f"about {estimate}" if plan.estimate_ms else "unknown (nothing measured yet)"
    if plan.extra_vm_ms:
        duration += f"; cost: about {records.age(plan.extra_vm_ms / 1000)} of VM time above the size"
    output.note(f"rollout{of_shard}: {count(plan.instances, 'instance')} to replace, {pace}; duration: {duration}")
    if plan.held:
        output.note(f"the rollout{of_shard} is {plan.held}")
