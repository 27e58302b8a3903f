"""The one screen: what is healthy is folded into a line, what is not is opened."""

from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from nstance.admin import output
from nstance.admin.shard import unknown
from nstance.admin.shard.overview import GroupView, ShardView
from nstance.admin.shard.records import Record, instance_row, is_overridden
from nstance.model.ids import ShardId

GOOD, ODD, BAD, DIM = "green", "yellow", "red", "dim"
MAX_INSTANCES = 8
MAX_FOLDED = 12


def draw(shard: ShardId, view: ShardView, *, now: float) -> Tree:
    ready = sum(each.group["ready_size"] for each in view.groups)
    size = sum(each.group["size"] for each in view.groups)
    healthy = sum(each.healthy for each in view.groups)
    tree = Tree(
        _line(
            _mark(view.healthy),
            (f"shard {shard}", "bold"),
            (f"  leader {view.config['leader']} (epoch {view.config['epoch']})", DIM),
            (f"  {healthy}/{len(view.groups)} groups healthy, {ready}/{size} instances ready", ""),
        ),
        guide_style=DIM,
    )
    for problem in view.config["errors"]:
        about = "" if "group held" in problem else "a newer config is refused: "
        tree.add(_line((about, BAD), (problem, "" if about else ODD)))
    for each in view.groups:
        if not each.healthy:
            _open(tree.add(_headline(each)), each, now=now)
    if view.left:
        _instances(tree.add(_line(("instances of deleted groups", ODD))), view.left, now=now)
    if view.unknown:
        _unknown(tree.add(_line((f"{len(view.unknown)} unknown VMs, held: adopt or release them", ODD))), view, now=now)
    if folded := [each.group for each in view.groups if each.healthy]:
        tree.add(_folded(folded))
    # What concerns the whole shard says itself when it is over: only the latest word about each is true.
    elsewhere = {each["reason"]: each for each in view.trouble if not each["group"]}
    for told in sorted(elsewhere.values(), key=lambda each: str(each["time"]))[-3:]:
        tree.add(_event(told))
    if view.healthy and view.trouble:
        count = f"{len(view.trouble)} trouble{'s' if len(view.trouble) > 1 else ''}"
        tree.add(_line((f"{count} in the last hour, over now: see `nstance-admin events`", DIM)))
    return tree


def unreachable(shard: ShardId) -> Tree:
    """Why is told with the failures, at the end."""
    return Tree(_line(("✗ ", BAD), (f"shard {shard}", "bold"), ("  does not answer", BAD)), guide_style=DIM)


def _headline(view: GroupView) -> Text:
    group = view.group
    return _line(
        ("● ", BAD if group["last_error"] or group["blocked"] or group["ready_size"] < group["size"] else ODD),
        (group["group"], "bold"),
        (f"  {view.headline}", ""),
        (_overridden(group), DIM),
    )


def _open(branch: Tree, view: GroupView, *, now: float) -> None:
    group = view.group
    for reason in group["blocked"]:
        branch.add(_line(("blocked: ", BAD), (reason, "")))
    if group["last_error"] and group["last_error"] not in group["blocked"]:
        branch.add(_line(("error: ", BAD), (group["last_error"], "")))
    _instances(branch, view.odd, now=now)
    for told in view.trouble:
        branch.add(_event(told))


def _instances(branch: Tree, instances: Sequence[Record], *, now: float) -> None:
    for each in instances[:MAX_INSTANCES]:
        row = instance_row(each, now=now)
        notes = ", ".join(row["notes"])
        branch.add(_line((each["instance_id"], ""), (f"  {row['state']} {row['age']}", ODD), (f"  {notes}", "")))
    if len(instances) > MAX_INSTANCES:
        branch.add(_line((f"and {len(instances) - MAX_INSTANCES} more: see `nstance-admin instance list`", DIM)))


def _unknown(branch: Tree, view: ShardView, *, now: float) -> None:
    for each in view.unknown[:MAX_INSTANCES]:
        shown = unknown.row(each, now=now)
        state = f"  {each['group']} {each['state']} {shown['age']}"
        branch.add(_line((each["instance_id"], ""), (state, ODD), (f"  {each['why']}", "")))
    if len(view.unknown) > MAX_INSTANCES:
        more = len(view.unknown) - MAX_INSTANCES
        branch.add(_line((f"and {more} more: see `nstance-admin instance list --unknown`", DIM)))


def _folded(groups: Sequence[Record]) -> Text:
    shown = [f"{group['group']} {group['size']}{_overridden(group)}" for group in groups[:MAX_FOLDED]]
    more = f" and {len(groups) - MAX_FOLDED} more" if len(groups) > MAX_FOLDED else ""
    return _line(("✓ ", GOOD), (", ".join(shown) + more, ""))


def _overridden(group: Record) -> str:
    file = group["size_source"]["config_size"]
    return f" (set by API, config file: {file})" if is_overridden(group) else ""


def _event(told: Record) -> Text:
    about = f" ({told['instance_id']})" if told["instance_id"] else ""
    return _line((f"{told['time'][11:19]}Z ", DIM), (f"{told['reason']} ", ODD), (f"{told['message']}{about}", ""))


def _mark(healthy: bool) -> tuple[str, str]:
    return ("✓ ", GOOD) if healthy else ("● ", ODD)


def _line(*parts: tuple[str, str]) -> Text:
    """Only through here: what others have written must not steer the terminal."""
    return Text.assemble(*((output.plain(text), style) for text, style in parts))
