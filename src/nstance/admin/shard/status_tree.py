"""The tree that `status` prints: healthy groups share a line, the others show their instances and problems."""

from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from nstance.admin import output
from nstance.admin.shard import alarms, costs, unknown_vms
from nstance.admin.shard.overview import GroupView, ShardView
from nstance.admin.shard.records import Record, exhausted_offer_line, instance_row, is_overridden
from nstance.model.counts import count
from nstance.model.ids import ShardId

GOOD, WARNING, BAD, DIM = "green", "yellow", "red", "dim"
DRAWN = frozenset({"config", "unknown-vms", "blocked", "error", "rollout", "paused"})  # alarms with lines of their own
MAX_INSTANCES = 8
MAX_EXHAUSTED_OFFERS = 4
MAX_HEALTHY_GROUPS = 12
MAX_SHARD_PROBLEMS = 3


def draw(shard: ShardId, view: ShardView, *, now: float) -> Tree:
    ready = sum(each.group["ready_size"] for each in view.groups)
    size = sum(each.group["size"] for each in view.groups)
    cost = costs.total(each.group["cost"] for each in view.groups)
    calm = {each.group["group"] for each in view.groups if each.healthy}
    tree = Tree(
        _line(
            ("✓ ", GOOD) if view.healthy else ("● ", WARNING),
            (f"shard {shard}", "bold"),
            (f"  leader {view.config['leader']} (epoch {view.config['epoch']})", DIM),
            (f"  {len(calm)}/{len(view.groups)} groups healthy, {ready}/{size} instances ready", ""),
            (f"  {cost}" if cost else "", DIM),
        ),
        guide_style=DIM,
    )
    for problem in view.config["errors"]:
        label = "" if "group held" in problem else "newer config rejected: "
        tree.add(_line((label, BAD), (problem, "" if label else WARNING)))
    for each in view.groups:
        if not each.healthy:
            _add_group(tree, each, now=now)
    for alarm in view.alarms:
        if alarm["kind"] not in DRAWN and (alarm["kind"] != "capacity" or alarm["group"] in calm):
            color = BAD if alarm["level"] == alarms.BAD else WARNING
            group = [(f"{alarm['group']}  ", "bold")] if alarm["group"] else []
            tree.add(_line(("! ", color), *group, (alarm["message"], "")))
    if view.ungrouped:
        _add_instances(
            tree.add(_line(("instances of groups that are not configured (deleted, or held)", WARNING))),
            view.ungrouped,
            now=now,
        )
    if view.unknown_vms:
        title = f"{count(len(view.unknown_vms), 'unknown VM')} held: adopt or release with `nstance-admin instance`"
        _add_unknown_vms(tree.add(_line((title, WARNING))), view, now=now)
    if folded := [each.group for each in view.groups if each.healthy]:
        tree.add(_healthy_groups(folded))
    # A problem of the whole shard also reports its end, so only the latest event of each reason counts.
    of_shard = {each["reason"]: each for each in view.problems if not each["group"]}
    for event in sorted(of_shard.values(), key=lambda each: str(each["time"]))[-MAX_SHARD_PROBLEMS:]:
        tree.add(_event(event))
    if view.healthy and view.problems:
        problems = count(len(view.problems), "problem")
        tree.add(_line((f"{problems} in the last hour, resolved: see `nstance-admin events`", DIM)))
    return tree


def unreachable(shard: ShardId) -> Tree:
    """The reason is printed with the failures, at the end."""
    return Tree(_line(("✗ ", BAD), (f"shard {shard}", "bold"), ("  does not answer", BAD)), guide_style=DIM)


def _add_group(tree: Tree, view: GroupView, *, now: float) -> None:
    group = view.group
    is_bad = group["last_error"] or group["blocked"] or group["ready_size"] < group["size"]
    branch = tree.add(
        _line(
            ("● ", BAD if is_bad else WARNING),
            (group["group"], "bold"),
            (f"  {view.headline}", ""),
            (_overridden(group), DIM),
        )
    )
    for reason in group["blocked"]:
        branch.add(_line(("blocked: ", BAD), (reason, "")))
    if group["last_error"] and group["last_error"] not in group["blocked"]:
        branch.add(_line(("error: ", BAD), (group["last_error"], "")))
    for offer in group["exhausted_offers"][:MAX_EXHAUSTED_OFFERS]:
        label = "server errors: " if offer["server_error"] else "no capacity: "
        branch.add(_line((label, WARNING), (exhausted_offer_line(offer), "")))
    _add_rest(
        branch, len(group["exhausted_offers"]), f"nstance-admin group show {group['group']}", MAX_EXHAUSTED_OFFERS
    )
    _add_instances(branch, view.unusual, now=now)
    for event in view.problems:
        branch.add(_event(event))


def _add_instances(branch: Tree, instances: Sequence[Record], *, now: float) -> None:
    for each in instances[:MAX_INSTANCES]:
        row = instance_row(each, now=now)
        notes = ", ".join(row["notes"])
        branch.add(_line((each["instance_id"], ""), (f"  {row['state']} {row['age']}", WARNING), (f"  {notes}", "")))
    _add_rest(branch, len(instances), "nstance-admin instance list")


def _add_unknown_vms(branch: Tree, view: ShardView, *, now: float) -> None:
    for each in view.unknown_vms[:MAX_INSTANCES]:
        age = unknown_vms.row(each, now=now)["age"]
        state = f"  {each['group']} {each['state']} {age}"
        branch.add(_line((each["instance_id"], ""), (state, WARNING), (f"  {each['why']}", "")))
    _add_rest(branch, len(view.unknown_vms), "nstance-admin instance list --unknown")


def _add_rest(branch: Tree, count: int, command: str, shown: int = MAX_INSTANCES) -> None:
    if count > shown:
        branch.add(_line((f"and {count - shown} more: see `{command}`", DIM)))


def _healthy_groups(groups: Sequence[Record]) -> Text:
    shown = [f"{group['group']} {group['size']}{_overridden(group)}" for group in groups[:MAX_HEALTHY_GROUPS]]
    more = f" and {len(groups) - MAX_HEALTHY_GROUPS} more" if len(groups) > MAX_HEALTHY_GROUPS else ""
    return _line(("✓ ", GOOD), (", ".join(shown) + more, ""))


def _overridden(group: Record) -> str:
    file = group["size_source"]["config_size"]
    return f" (set by API, config file: {file})" if is_overridden(group) else ""


def _event(event: Record) -> Text:
    instance = f" ({event['instance_id']})" if event["instance_id"] else ""
    time = f"{event['time'][11:19]}Z "
    return _line((time, DIM), (f"{event['reason']} ", WARNING), (f"{event['message']}{instance}", ""))


def _line(*parts: tuple[str, str]) -> Text:
    """All text goes through here: control characters of others must not reach the terminal."""
    return Text.assemble(*((output.escape(text), style) for text, style in parts))
