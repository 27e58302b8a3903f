"""Shards' messages as records for programs, and as rows and lines for people."""

import datetime
from collections import Counter
from collections.abc import Iterable
from typing import Any

from nstance.admin import json_schema, output
from nstance.admin.shard import costs
from nstance.admin.shard.shapes import (
    FLAG,
    MAP,
    NUMBER,
    OPTIONAL,
    PRESENT,
    PRESENT_NUMBER,
    REAL,
    TEXT,
    TEXTS,
    TIME,
    Kind,
    Shape,
    many,
    nested,
    one,
    timestamp_ms,
)
from nstance.model import durations
from nstance.model.ids import ShardId

Record = dict[str, Any]

GROUP_COLUMNS = ("group", "template", "type", "size", "actual", "ready", "cost", "notes")
INSTANCE_COLUMNS = ("instance", "group", "state", "ready", "age", "notes")
REVISION_COLUMNS = ("revision", "outcome", "by", "started", "finished", "failures", "message")
PLAN_COLUMNS = ("action", "instance", "reason", "message")


def age(seconds: float) -> str:
    """In its two largest units: 3d4h, 5m10s, 12s."""
    rounded = max(0, int(seconds))
    for step, unit in ((86400, 3600), (3600, 60), (60, 1)):
        if rounded >= step:
            return durations.format(rounded // unit * unit)
    return f"{rounded}s"


def age_since(time: str | None, now: float) -> str:
    return age(now - datetime.datetime.fromisoformat(time).timestamp()) if time else ""


def short(revision: str) -> str:
    """Enough digits to identify it."""
    return revision.removeprefix("sha256:")[:12]


SIZE_SOURCE = Shape(("kind by", OPTIONAL), ("at", TIME), ("config_size", PRESENT_NUMBER))
OVERRIDE = Shape(("field value", TEXT), ("file_value", PRESENT), ("by", OPTIONAL), ("at", TIME))
EXHAUSTED_OFFER = Shape(("market instance_type subnet message", OPTIONAL), ("retry", TIME), ("server_error", FLAG))
REVISION = Shape(
    ("revision", Kind(json_schema.TEXT, lambda status, name: short(status.revision))),
    ("outcome", TEXT),
    ("by", OPTIONAL),
    ("started finished", TIME),
    ("updated ready outdated failures", NUMBER),
    ("message", OPTIONAL),
)
GROUP = Shape(
    ("shard group tenant template", TEXT),
    ("size", NUMBER),
    ("size_source", nested(SIZE_SOURCE)),
    ("actual_size ready_size not_ready", NUMBER),
    ("blocked", TEXTS),
    ("draining on_demand", NUMBER),
    ("instance_type subnet_pool", TEXT),
    ("instance_types markets", TEXTS),
    ("prefer", OPTIONAL),
    ("exhausted_offers", many(EXHAUSTED_OFFER)),
    ("vars", MAP),
    ("overrides", many(OVERRIDE)),
    ("static paused", FLAG),
    ("rollout", one(REVISION, "Revision")),
    ("rolled_back_from file_instance_type last_error", OPTIONAL),
    ("provider_ids", TEXTS),
    ("cost", one(costs.COST, "Cost")),
    ("etag", TEXT),
)
GROUP_WITH_HASHES = GROUP.plus(("infra_hash runtime_hash", OPTIONAL))
CHECK = Shape(("name", TEXT), ("passing", FLAG), ("message", OPTIONAL), ("since", TIME))
INSTANCE = Shape(
    ("shard instance_id", TEXT),
    ("provider_id", OPTIONAL),
    ("group state", TEXT),
    ("reason message", OPTIONAL),
    ("on_demand suspect connected drifted", FLAG),
    ("instance_type", TEXT),
    ("market subnet ipv4 ipv6 hostname", OPTIONAL),
    ("created registered last_report drain_deadline", TIME),
    ("vm_status", TEXT),
    ("vm_gone", FLAG),
    ("replaces", OPTIONAL),
    ("cloned ready", FLAG),
    ("not_ready", OPTIONAL),
    ("first_ready", TIME),
    ("revision", OPTIONAL),
    ("checks", many(CHECK)),
)
FILE = Shape(
    ("name sha256", TEXT),
    ("expires", Kind(json_schema.TIME, lambda file, name: timestamp_ms(file.expires_unix * 1000))),
)
REPORT = Shape(
    ("version", TEXT),
    (
        "uptime_seconds cpu_percent memory_percent disk_percent load1",
        Kind(json_schema.REAL, lambda report, name: round(getattr(report, name), 3)),
    ),
    ("files_hash wanted_files_hash files_error", OPTIONAL),
    ("files", many(FILE)),
)
INSTANCE_WITH_REPORT = INSTANCE.plus(("report", one(REPORT, "Report")))
EVENT = Shape(("shard", TEXT), ("time", TIME), ("group instance_id reason message", TEXT))
NUMBERED_EVENT = EVENT.plus(("id", NUMBER), ("trouble", FLAG))  # for programs that follow events or look for problems
CONTROL_PLANE = Shape(
    ("leader", TEXT),
    ("epoch leading_ms", NUMBER),
    ("provider_rate", REAL),
    ("standbys", many(Shape(("server", TEXT), ("answered_ms", NUMBER)))),
    ("metrics", many(Shape(("name", TEXT), ("labels", MAP), ("value", REAL)))),
    ("alarms", many(Shape(("kind message", TEXT)))),
    ("storage_failed", TIME),
)
ROLLOUT_PLAN = Shape(
    ("shard", TEXT),
    ("instances at_once", NUMBER),
    ("order", TEXT),
    ("estimate_ms extra_vm_ms", NUMBER),
    ("held", OPTIONAL),
)
CONFIG = Shape(
    ("shard etag", TEXT),
    ("last_modified", TIME),
    ("size", NUMBER),
    ("leader", TEXT),
    ("epoch", NUMBER),
    ("cluster", TEXT),
    ("errors", TEXTS),
)
REFRESHED = Shape(
    ("shard", TEXT), ("updated", FLAG), ("previous_etag etag", TEXT), ("errors needs_restart warnings", TEXTS)
)
ACTION = Shape(("shard group action", TEXT), ("instance_id", OPTIONAL), ("reason message", TEXT))


def group(shard: ShardId, status: Any, shape: Shape = GROUP) -> Record:
    rolled_back_from = short(status.rolled_back_from) or None
    return shape.fill(status, shard=shard, group=status.key, rolled_back_from=rolled_back_from)


def group_with_hashes(shard: ShardId, status: Any) -> Record:
    return group(shard, status, GROUP_WITH_HASHES)


def instance(shard: ShardId, status: Any, shape: Shape = INSTANCE) -> Record:
    # Older servers do not report readiness: a running instance counts as ready there.
    ready = status.state == "running" and not status.not_ready
    return shape.fill(status, shard=shard, ready=ready, first_ready=timestamp_ms(status.ready_unix_ms))


def instance_with_report(shard: ShardId, status: Any) -> Record:
    return instance(shard, status, INSTANCE_WITH_REPORT)


def config(shard: ShardId, status: Any) -> Record:
    return CONFIG.fill(status, shard=shard, last_modified=output.timestamp(status.last_modified_unix or None))


def exhausted_offer_line(record: Record) -> str:
    """`spot m7g.large in subnet-1 until 2026-01-31T12:00:00Z: the provider's message`."""
    what = " ".join(filter(None, (record["market"], record["instance_type"]))) or "the offer"
    where = f" in {record['subnet']}" if record["subnet"] else ""
    until = f" until {record['retry'][:19]}Z" if record["retry"] else ""
    return f"{what}{where}{until}: {record['message'] or 'no capacity'}"


def size_source(record: Record) -> str:
    """Where a group's size comes from, in words: `api, set by opr-1 at 2026-01-31T12:00:00Z; the config file has 5`."""
    source = record["size_source"]
    by = f", set by {source['by']} at {source['at'][:19]}Z" if source["by"] else ""
    file = source["config_size"]
    return f"{source['kind']}{by}" + (f"; the config file has {file}" if is_overridden(record) else "")


def is_overridden(record: Record) -> bool:
    """The API set another size than the config file."""
    file = record["size_source"]["config_size"]
    return bool(record["static"] and file is not None and file != record["size"])


def group_lines(record: Record) -> Record:
    """For `group show`: nested values as text."""
    overrides = [
        f"{each['field']}={each['value']} by {each['by'] or 'unknown'}"
        + (f" at {each['at'][:19]}Z" if each["at"] else "")
        + (f" (config file: {each['file_value']})" if each["file_value"] is not None else "")
        for each in record["overrides"]
    ]
    vars = [f"{name}={value}" for name, value in record["vars"].items()]
    exhausted = [exhausted_offer_line(each) for each in record["exhausted_offers"]]
    texts = {"size_source": size_source(record), "vars": vars, "overrides": overrides, "exhausted_offers": exhausted}
    cost = costs.group_line(record["cost"]) if record["cost"] is not None else None
    return {**record, **texts, "cost": cost, "rollout": _rollout_line(record["rollout"])}


def revision_row(shard: ShardId, record: Record) -> Record:
    return {"shard": shard, **record, "message": record["message"] or ""}


def _rollout_notes(rollout: Record | None, size: int) -> list[str]:
    if rollout is None:
        return []
    notes = [rollout["message"]] if (rollout["message"] or "").startswith("rolled back") else []
    if rollout["outcome"] == "rolling" and rollout["outdated"]:
        notes.append(f"rolling out: {min(rollout['updated'], size)} of {size} updated")
    if rollout["outcome"] in ("paused", "halted"):
        notes.append(f"rollout {rollout['outcome']}: {rollout['message'] or ''}")
    return notes


def _rollout_line(rollout: Record | None) -> str | None:
    if rollout is None:
        return None
    count = f"{rollout['updated']} updated, {rollout['ready']} of them ready, {rollout['outdated']} outdated"
    line = f"{rollout['outcome']} {rollout['revision']} by {rollout['by']}: {count}"
    return f"{line}; {rollout['message']}" if rollout["message"] else line


def group_row(record: Record) -> Record:
    notes = ["static"] if record["static"] else []
    if record["static"] and record["size_source"]["kind"] != "config":
        notes.append(f"size from {size_source(record)}")
    notes += ["paused"] if record["paused"] else []
    notes += _rollout_notes(record["rollout"], record["size"])
    for field, label in (("draining", "draining"), ("on_demand", "on demand"), ("not_ready", "not ready")):
        notes += [f"{record[field]} {label}"] if record[field] else []
    if count := len(record["exhausted_offers"]):
        notes.append(f"{count} exhausted offer{'s' if count > 1 else ''}")
    notes += [f"blocked: {reason}" for reason in record["blocked"]]
    notes += [record["last_error"]] if record["last_error"] and record["last_error"] not in record["blocked"] else []
    copied = {name: record[name] for name in ("shard", "group", "template", "size")}
    types = ", ".join(record["instance_types"] or [record["instance_type"]])
    sizes = {"type": types, "actual": record["actual_size"], "ready": record["ready_size"]}
    cost = costs.hourly(record["cost"]) if record["cost"] is not None else ""
    return {**copied, **sizes, "cost": cost, "notes": notes}


def instance_lines(record: Record) -> Record:
    """For `instance show`: nested values as text."""
    checks = [
        f"{check['name']} {'passing' if check['passing'] else 'failing'}"
        + (f" since {check['since'][:19]}Z" if check["since"] else "")
        + (f" ({check['message']})" if check["message"] else "")
        for check in record["checks"]
    ]
    return {**record, "checks": checks}


def instance_row(record: Record, *, now: float) -> Record:
    return {
        "shard": record["shard"],
        "instance": record["instance_id"],
        "group": record["group"],
        "state": record["state"],
        "ready": "yes" if record["ready"] else "no",
        "age": age_since(record["created"], now),
        "notes": instance_notes(record, now=now),
    }


def _short_time(time: str, now: float) -> str:
    """With the date only if it is not today."""
    today = datetime.datetime.fromtimestamp(now, datetime.UTC).date().isoformat()
    return f"{time[11:19]}Z" if time.startswith(today) else f"{time[:10]} {time[11:16]}Z"


def instance_notes(record: Record, *, now: float) -> list[str]:
    """What needs attention."""
    notes = [note for note in ("on_demand", "suspect", "drifted") if record[note]]
    if record["state"] == "running" and not record["connected"] and not record["suspect"]:
        notes.append("without agent")
    elif record["not_ready"] and not record["suspect"]:
        notes.append(f"not ready: {record['not_ready']}")
    if record["cloned"]:
        notes.append("two agents use its identity")
    if record["reason"]:
        notes.append(record["reason"])
    if record["drain_deadline"]:
        notes.append(f"until {_short_time(record['drain_deadline'], now)}")
    return [note.replace("on_demand", "on-demand") for note in notes]


def actions(shard: ShardId, planned: Iterable[Any]) -> list[Record]:
    return [ACTION.fill(each, shard=shard) for each in planned]


def plan_rows(actions: Iterable[Record]) -> list[Record]:
    """Equal actions share a row with their count; a long message that repeats is shown once."""
    rows: list[Record] = []
    last: tuple[object, ...] = ()
    names = ("shard", "group", "action", "instance_id", "reason", "message")
    for (shard, group, act, id, reason, message), count in Counter(
        tuple(each[name] for name in names) for each in actions
    ).items():
        current = (shard, group, act, reason, message)
        rows.append(
            {
                "shard": shard,
                "group": group,
                "action": f"{act} ×{count}" if count > 1 else act,
                "instance": id,
                "reason": reason,
                "message": "as above" if current == last and len(message) > 20 else message,
            }
        )
        last = current
    return rows
