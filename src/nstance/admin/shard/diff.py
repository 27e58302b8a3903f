"""Compares each group's settings: in the config file, set through the API, active, and actual."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from nstance.admin.client import Client
from nstance.admin.shard import groups, instances
from nstance.admin.shard.records import Record
from nstance.admin.shard.records import group as group_record

COLUMNS = ("group", "setting", "file", "api", "active", "actual", "differs")
LEAVING = ("draining", "deleting")


async def compare(client: Client, name: str | None) -> list[Record]:
    found = [await groups.find(client, name)] if name is not None else await groups.list_groups(client)
    members = await instances.list_instances(client, group=name or "")
    types: dict[str, Counter[str]] = {}
    for each in members:
        if not each.on_demand and each.state not in LEAVING:
            types.setdefault(each.group, Counter())[each.instance_type] += 1
    return [
        row for status in found for row in rows(group_record(client.shard, status), types.get(status.key, Counter()))
    ]


def rows(group: Record, types: Counter[str]) -> list[Record]:
    """Size and instance type always, vars only if the API sets them, the revision only if the group is rolled back.
    `types`: the number of instances of each type."""
    overrides = {each["field"]: each for each in group["overrides"]}
    size, ready, source = group["size"], group["ready_size"], group["size_source"]
    actual = str(group["actual_size"]) + (f" ({ready} ready)" if ready != group["actual_size"] else "")
    counts = [f"{kind} {count}" for kind, count in sorted(types.items()) if kind]
    # Servers of older versions do not say it.
    file_type = group["file_instance_type"] or overrides.get("instance_type", {}).get("file_value")
    if "instance_type" not in overrides and not group["rolled_back_from"]:
        file_type = file_type or group["instance_type"]
    found = [
        _row(
            group,
            "size",
            file=source["config_size"] if group["static"] else None,
            api=size if source["kind"] == "api" else None,
            active=size,
            actual=actual,
        ),
        _row(
            group,
            "instance_type",
            file=(file_type or None) if group["static"] else None,
            api=overrides["instance_type"]["value"] if "instance_type" in overrides else None,
            active=group["instance_type"],
            actual=", ".join(counts) or None,
        ),
    ]
    if (group["actual_size"], ready) != (size, size):
        found[0]["differs"].append("actual")
    if any(kind != group["instance_type"] for kind in types):
        found[1]["differs"].append("actual")
    if group["rolled_back_from"]:
        found.append(_rolled_back_row(group))
        if file_type and file_type != group["instance_type"]:
            found[1]["differs"].append("rolled back")
    for field, each in overrides.items():
        if field.startswith("vars."):
            value = each["value"]
            found.append(_row(group, field, file=each["file_value"], api=value, active=value, actual=None))
    return found


def _rolled_back_row(group: Record) -> Record:
    """What is configured, and the earlier revision that is active instead."""
    configured, rollout = group["rolled_back_from"], group["rollout"]
    row = _row(
        group,
        "revision",
        file=configured if group["static"] else None,
        api=None if group["static"] else configured,
        active=rollout["revision"] if rollout is not None else None,
        actual=None,
    )
    return {**row, "differs": ["rolled back"]}


def _row(group: Record, setting: str, **values: Any) -> Record:
    """`values`: of the file, of the API, active and actual."""
    is_overridden = group["static"] and values["api"] is not None and values["file"] != values["api"]
    return {
        "shard": group["shard"],
        "group": group["group"],
        "setting": setting,
        **values,
        "differs": ["overridden"] if is_overridden else [],
    }


def table(rows: Sequence[Record]) -> list[Record]:
    """Without the instance type where none is set."""
    columns = ("file", "api", "active", "actual")
    return [row for row in rows if row["setting"] != "instance_type" or any(row[each] for each in columns)]
