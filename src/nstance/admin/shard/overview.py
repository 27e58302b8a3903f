"""The current state of a shard, and what of it needs attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nstance.admin.client import Client
from nstance.admin.shard import alarms, control_plane, instances, unknown_vms
from nstance.admin.shard.records import EVENT, Record, config, group, instance

RECENT_SECONDS = 3600.0  # older problems are history
MAX_EVENTS = 1_000
MAX_PROBLEMS = 3  # the latest kinds of problems that a group shows

LEAVING = ("draining", "deleting")
UNFINISHED = {"rolling": "under way", "paused": "paused", "halted": "halted"}  # outcomes of a rollout, in words


@dataclass(frozen=True, slots=True)
class GroupView:
    group: Record
    unsettled: Sequence[str]  # why it is not in its desired state
    concerns: Sequence[str]  # what else needs attention
    unusual: Sequence[Record]  # its instances that are not simply running
    problems: Sequence[Record]  # latest events

    @property
    def healthy(self) -> bool:
        return not self.unsettled and not self.concerns and not self.group["last_error"]

    @property
    def headline(self) -> str:
        shown = [each for each in self.unsettled if not each.startswith("blocked: ")]  # those have their own lines
        return ", ".join(dict.fromkeys([*shown, *self.concerns]))


@dataclass(frozen=True, slots=True)
class ShardView:
    config: Record
    groups: Sequence[GroupView]
    ungrouped: Sequence[Record]  # instances of deleted groups
    problems: Sequence[Record]  # all recent ones
    unknown_vms: Sequence[Record] = ()
    alarms: Sequence[Record] = ()  # also of what the other fields show

    @property
    def healthy(self) -> bool:
        is_clean = not (self.config["errors"] or self.ungrouped or self.unknown_vms)
        is_alarmed = any(each["level"] == alarms.BAD for each in self.alarms)
        return is_clean and not is_alarmed and all(view.healthy for view in self.groups)


async def load_shard(client: Client, *, now: float) -> ShardView:
    active = config(client.shard, await client.call("GetConfigStatus"))
    leader = await control_plane.read(client)
    groups = [group(client.shard, each) for each in (await client.call("ListGroups")).groups]
    found = [instance(client.shard, each) for each in await instances.list_instances(client)]
    events = (await client.call("ListEvents", limit=MAX_EVENTS)).events
    since = (now - RECENT_SECONDS) * 1000
    recent = [each for each in events if each.time_unix_ms > since]
    problems = [EVENT.fill(each, shard=client.shard) for each in recent if each.trouble]
    views = [group_view(each, found, problems) for each in groups]
    unknown = await unknown_vms.load_records(client)
    shard = control_plane.shard_record(client, leader, config=active, unknown_vms=len(unknown), read_at=now)
    history = (EVENT.fill(each, shard=client.shard) for each in recent)
    known = {each.group["group"] for each in views}
    return ShardView(
        config=active,
        groups=views,
        ungrouped=[each for each in found if each["group"] not in known],
        unknown_vms=unknown,
        problems=problems,
        alarms=alarms.find([shard], groups, history, now=now),
    )


def group_view(record: Record, instances: Sequence[Record], problems: Sequence[Record] = ()) -> GroupView:
    members = [each for each in instances if each["group"] == record["group"]]
    unsettled = unsettled_reasons(record, members)
    shown = [each for each in problems if each["group"] == record["group"]]
    if not unsettled:  # what concerned instances or a rollout of the past is resolved
        known = {each["instance_id"] for each in members}
        shown = [each for each in shown if each["instance_id"] in known and each["reason"] != "rollout-halted"]
    return GroupView(
        group=record,
        unsettled=unsettled,
        concerns=concerns(record, members),
        unusual=[each for each in members if _is_unusual(each)],
        problems=_newest_by_reason(shown)[-MAX_PROBLEMS:],
    )


def _newest_by_reason(problems: Sequence[Record]) -> list[Record]:
    """So that many of one kind do not hide the others, such as when a group retries."""
    found: dict[str, Record] = {}
    for each in problems:
        found.pop(each["reason"], None)
        found[each["reason"]] = each
    return list(found.values())


def _is_unusual(record: Record) -> bool:
    return (
        record["state"] != "running"
        or record["suspect"]
        or record["drifted"]
        or not record["ready"]
        or not record["connected"]
        or record["cloned"]
        or record["reason"] is not None
    )


def unsettled_reasons(record: Record, instances: Sequence[Record]) -> list[str]:
    """Why the group is not stable, in words; empty if it is in its desired state and nothing is in progress."""
    found = []
    size, actual, ready = record["size"], record["actual_size"], record["ready_size"]
    if ready < size or actual < size:
        found.append(f"{ready}/{size} ready")
    if actual > size:
        found.append(f"{actual - size} more than desired")
    waiting = [each["not_ready"] for each in instances if each["connected"] and each["not_ready"]]
    if waiting:
        found.append(f"{len(waiting)} not ready: {waiting[0]}")
    if disconnected := sum(each["state"] == "running" and not each["connected"] for each in instances):
        found.append(f"{disconnected} without agent")
    if leaving := sum(each["state"] in LEAVING for each in instances):
        found.append(f"{leaving} leaving")
    if drifted := sum(bool(each["drifted"]) for each in instances if each["state"] not in LEAVING):
        found.append(f"{drifted} to be replaced")
    found += [f"blocked: {reason}" for reason in record["blocked"]]
    rollout = record.get("rollout")
    # A group of size 0 proves no revision: if no instance is outdated, its rollout is not under way.
    if (
        rollout is not None
        and rollout["outcome"] in UNFINISHED
        and (rollout["outcome"] != "rolling" or rollout["outdated"] or record["size"])
    ):
        message = f": {rollout['message']}" if rollout["message"] else ""
        found.append(f"rollout {UNFINISHED[rollout['outcome']]}{message}")
    if found and record["paused"]:
        found.append("paused")
    return found


def steps_left(record: Record, instances: Sequence[Record]) -> int:
    """Instances that must still become ready, leave or be replaced."""
    members = [each for each in instances if each["group"] == record["group"]]
    leaving = sum(each["state"] in LEAVING for each in members)
    drifted = sum(bool(each["drifted"]) for each in members if each["state"] not in LEAVING)
    missing = record["size"] - record["ready_size"]
    excess = record["actual_size"] - record["size"] if not drifted else 0  # replacements are not one more step
    return int(max(0, missing) + max(0, excess) + leaving + drifted)


def concerns(record: Record, instances: Sequence[Record]) -> list[str]:
    """What needs attention although nothing is in progress."""
    found = ["paused"] if record["paused"] else []
    if record["rolled_back_from"]:
        source = "config file" if record["static"] else "group's own settings"
        found.append(f"rolled back: revision {record['rolled_back_from']} of the {source} is not active")
    if cloned := sum(bool(each["cloned"]) for each in instances):
        found.append(f"{cloned} with an identity that two agents use")
    return found


def document(view: ShardView) -> Record:
    """For programs."""
    groups: list[Any] = [
        {
            **each.group,
            "healthy": each.healthy,
            "unsettled": list(each.unsettled),
            "concerns": list(each.concerns),
            "instances": list(each.unusual),
            "trouble": list(each.problems),
        }
        for each in view.groups
    ]
    return {
        **view.config,
        "healthy": view.healthy,
        "groups": groups,
        "left_over": list(view.ungrouped),
        "unknown_vms": list(view.unknown_vms),
        "alarms": list(view.alarms),
    }
