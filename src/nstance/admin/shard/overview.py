"""What a shard looks like now, and what of it is not as it should be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nstance.admin.client import Client
from nstance.admin.shard import instances, unknown
from nstance.admin.shard.records import Record, config, event, group, instance

LATELY = 3600.0  # trouble that is older is history
EVENTS = 200
SHOWN = 3  # of a group's latest kinds of trouble

LEAVING = ("draining", "deleting")
UNFINISHED = {"rolling": "under way", "paused": "paused", "halted": "halted"}  # outcomes of a rollout, in words


@dataclass(frozen=True, slots=True)
class GroupView:
    group: Record
    unsettled: Sequence[str]  # what keeps it from being as it is wished
    concerns: Sequence[str]  # what else should be known
    odd: Sequence[Record]  # its instances that are not simply running
    trouble: Sequence[Record]  # latest events

    @property
    def healthy(self) -> bool:
        return not self.unsettled and not self.concerns and not self.group["last_error"]

    @property
    def headline(self) -> str:
        shown = [each for each in self.unsettled if not each.startswith("blocked: ")]  # told in lines of their own
        return ", ".join(dict.fromkeys([*shown, *self.concerns]))


@dataclass(frozen=True, slots=True)
class ShardView:
    config: Record
    groups: Sequence[GroupView]
    left: Sequence[Record]  # instances whose group is gone
    trouble: Sequence[Record]  # lately; all of it
    unknown: Sequence[Record] = ()  # VMs that no record knows

    @property
    def healthy(self) -> bool:
        return not (self.config["errors"] or self.left or self.unknown) and all(view.healthy for view in self.groups)


async def look(client: Client, *, now: float) -> ShardView:
    config_status = await client.call("GetConfigStatus")
    groups = (await client.call("ListGroups")).groups
    found = [instance(client.shard, each) for each in await instances.everything(client)]
    events = (await client.call("ListEvents", limit=EVENTS)).events
    trouble = [
        event(client.shard, each) for each in events if each.trouble and each.time_unix_ms > (now - LATELY) * 1000
    ]
    views = [view(group(client.shard, each), found, trouble) for each in groups]
    known = {each.group["group"] for each in views}
    return ShardView(
        config=config(client.shard, config_status),
        groups=views,
        left=[each for each in found if each["group"] not in known],
        unknown=[unknown.record(client.shard, each) for each in await unknown.everything(client)],
        trouble=trouble,
    )


def view(record: Record, instances: Sequence[Record], trouble: Sequence[Record] = ()) -> GroupView:
    mine = [each for each in instances if each["group"] == record["group"]]
    return GroupView(
        group=record,
        unsettled=unsettled(record, mine),
        concerns=concerns(record, mine),
        odd=[each for each in mine if _is_odd(each)],
        trouble=_newest([each for each in trouble if each["group"] == record["group"]])[-SHOWN:],
    )


def _newest(trouble: Sequence[Record]) -> list[Record]:
    """Of each reason the newest: many of one kind do not hide what else there is, such as when a group tries again."""
    found: dict[str, Record] = {}
    for each in trouble:
        found.pop(each["reason"], None)
        found[each["reason"]] = each
    return list(found.values())


def _is_odd(record: Record) -> bool:
    return (
        record["state"] != "running"
        or record["suspect"]
        or record["drifted"]
        or not record["ready"]
        or not record["connected"]
        or record["cloned"]
        or record["reason"] is not None
    )


def unsettled(record: Record, instances: Sequence[Record]) -> list[str]:
    """Why the group is not stable, in words; empty if it is as wished and nothing is on its way."""
    found = []
    size, actual, ready = record["size"], record["actual_size"], record["ready_size"]
    if ready < size or actual < size:
        found.append(f"{ready}/{size} ready")
    if actual > size:
        found.append(f"{actual - size} more than wished")
    waiting = [each["not_ready"] for each in instances if each["connected"] and each["not_ready"]]
    if waiting:
        found.append(f"{len(waiting)} not ready: {waiting[0]}")
    if lost := sum(each["state"] == "running" and not each["connected"] for each in instances):
        found.append(f"{lost} without agent")
    if leaving := sum(each["state"] in LEAVING for each in instances):
        found.append(f"{leaving} leaving")
    if drifted := sum(bool(each["drifted"]) for each in instances if each["state"] not in LEAVING):
        found.append(f"{drifted} to be rotated")
    found += [f"blocked: {reason}" for reason in record["blocked"]]
    rollout = record.get("rollout")
    # A group of nothing proves no revision: where nobody is outdated and nobody is missing, nothing is under way.
    if (
        rollout is not None
        and rollout["outcome"] in UNFINISHED
        and (rollout["outcome"] != "rolling" or rollout["outdated"] or record["size"])
    ):
        said = f": {rollout['message']}" if rollout["message"] else ""
        found.append(f"rollout {UNFINISHED[rollout['outcome']]}{said}")
    if found and record["paused"]:
        found.append("paused")
    return found


def concerns(record: Record, instances: Sequence[Record]) -> list[str]:
    """What should be known of the group although nothing is on its way."""
    found = []
    if record["paused"]:
        found.append("paused")
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
            "instances": list(each.odd),
            "trouble": list(each.trouble),
        }
        for each in view.groups
    ]
    return {
        **view.config,
        "healthy": view.healthy,
        "groups": groups,
        "left_over": list(view.left),
        "unknown_vms": list(view.unknown),
    }
