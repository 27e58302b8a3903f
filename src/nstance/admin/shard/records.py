"""What shards answer, as records for programs and as rows for tables."""

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from nstance.admin import output
from nstance.model import durations
from nstance.model.ids import ShardId

Record = dict[str, Any]

GROUP_COLUMNS = ("group", "template", "type", "size", "actual", "ready", "notes")
INSTANCE_COLUMNS = ("instance", "group", "state", "age", "notes")
PLAN_COLUMNS = ("action", "instance", "reason", "message")
PLANS_COLUMNS = ("group", *PLAN_COLUMNS)


def moment(milliseconds: int) -> str | None:
    """In UTC, to the millisecond. None for 0, which means: never, or not known."""
    if not milliseconds:
        return None
    at = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age(seconds: float) -> str:
    """In its two largest units: 3d4h, 5m10s, 12s."""
    whole = max(0, int(seconds))
    for step, unit in ((86400, 3600), (3600, 60), (60, 1)):
        if whole >= step:
            return durations.format(whole // unit * unit)
    return f"{whole}s"


def group(shard: ShardId, status: Any) -> Record:
    return {
        "shard": shard,
        "group": status.key,
        "tenant": status.tenant,
        "template": status.template,
        "size": status.size,
        "actual_size": status.actual_size,
        "ready_size": status.ready_size,
        "draining": status.draining,
        "on_demand": status.on_demand,
        "instance_type": status.instance_type,
        "subnet_pool": status.subnet_pool,
        "vars": dict(sorted(status.vars.items())),
        "static": status.static,
        "paused": status.paused,
        "last_error": status.last_error or None,
        "provider_ids": list(status.provider_ids),
        "etag": status.etag,
    }


def group_row(record: Record) -> Record:
    marks = ["static"] if record["static"] else []
    marks += ["paused"] if record["paused"] else []
    marks += [f"{record['draining']} draining"] if record["draining"] else []
    marks += [f"{record['on_demand']} on demand"] if record["on_demand"] else []
    marks += [record["last_error"]] if record["last_error"] else []
    return {
        "shard": record["shard"],
        "group": record["group"],
        "template": record["template"],
        "type": record["instance_type"],
        "size": record["size"],
        "actual": record["actual_size"],
        "ready": record["ready_size"],
        "notes": marks,
    }


def instance(shard: ShardId, status: Any) -> Record:
    return {
        "shard": shard,
        "instance_id": status.instance_id,
        "provider_id": status.provider_id or None,
        "group": status.group,
        "state": status.state,
        "reason": status.reason or None,
        "message": status.message or None,
        "on_demand": status.on_demand,
        "suspect": status.suspect,
        "connected": status.connected,
        "drifted": status.drifted,
        "instance_type": status.instance_type,
        "subnet": status.subnet or None,
        "ipv4": status.ipv4 or None,
        "ipv6": status.ipv6 or None,
        "hostname": status.hostname or None,
        "created": moment(status.created_unix_ms),
        "registered": moment(status.registered_unix_ms),
        "last_report": moment(status.last_report_unix_ms),
        "drain_deadline": moment(status.drain_deadline_unix_ms),
        "vm_status": status.vm_status,
        "vm_gone": status.vm_gone,
        "replaces": status.replaces or None,
    }


def instance_row(record: Record, *, now: float) -> Record:
    born = record["created"]
    return {
        "shard": record["shard"],
        "instance": record["instance_id"],
        "group": record["group"],
        "state": record["state"],
        "age": age(now - datetime.datetime.fromisoformat(born).timestamp()) if born else "",
        "notes": instance_notes(record, now=now),
    }


def _soon(moment: str, now: float) -> str:
    """The date only if it is another one than today's."""
    today = datetime.datetime.fromtimestamp(now, datetime.UTC).date().isoformat()
    return f"{moment[11:19]}Z" if moment.startswith(today) else f"{moment[:10]} {moment[11:16]}Z"


def instance_notes(record: Record, *, now: float) -> list[str]:
    """What is out of the ordinary."""
    marks = [mark for mark in ("on_demand", "suspect", "drifted") if record[mark]]
    if record["state"] == "running" and not record["connected"] and not record["suspect"]:
        marks.append("without agent")
    if record["reason"]:
        marks.append(record["reason"])
    if record["drain_deadline"]:
        marks.append(f"until {_soon(record['drain_deadline'], now)}")
    return [mark.replace("_", "-") for mark in marks]


def event(shard: ShardId, told: Any) -> Record:
    return {
        "shard": shard,
        "time": moment(told.time_unix_ms),
        "group": told.group,
        "instance_id": told.instance_id,
        "reason": told.reason,
        "message": told.message,
    }


def config(shard: ShardId, status: Any) -> Record:
    return {
        "shard": shard,
        "etag": status.etag,
        "last_modified": output.when(status.last_modified_unix or None),
        "size": status.size,
        "leader": status.leader,
        "epoch": status.epoch,
        "cluster": status.cluster,
        "errors": list(status.errors),
    }


def refreshed(shard: ShardId, answer: Any) -> Record:
    return {
        "shard": shard,
        "updated": answer.updated,
        "previous_etag": answer.previous_etag,
        "etag": answer.etag,
        "errors": list(answer.errors),
        "needs_restart": list(answer.needs_restart),
    }


def action(shard: ShardId, told: Any) -> Record:
    return {
        "shard": shard,
        "group": told.group,
        "action": told.action,
        "instance_id": told.instance_id or None,
        "reason": told.reason,
        "message": told.message,
    }


def plan_rows(actions: Iterable[Record]) -> list[Record]:
    """Equal creations are one row; what is said of one instance after the other is said once."""
    rows: list[Record] = []
    last: tuple[object, ...] = ()
    for (shard, group, act, id, reason, message), count in _counted(actions).items():
        again = (shard, group, act, reason, message) == last
        last = (shard, group, act, reason, message)
        shown = f"{act} ×{count}" if count > 1 else act
        said = "as above" if again and len(message) > 20 else message
        row = {"shard": shard, "group": group, "action": shown, "instance": id, "reason": reason, "message": said}
        rows.append(row)
    return rows


def _counted(actions: Iterable[Record]) -> dict[tuple[str, ...], int]:
    counts: dict[tuple[str, ...], int] = {}
    for each in actions:
        key = tuple(each[name] for name in ("shard", "group", "action", "instance_id", "reason", "message"))
        counts[key] = counts.get(key, 0) + 1
    return counts


def columns(usual: Sequence[str], *, several: bool) -> tuple[str, ...]:
    """The shard is named where there may be several."""
    return ("shard", *usual) if several else tuple(usual)
