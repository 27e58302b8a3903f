"""What shards answer, as records for programs and as rows for tables."""

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from nstance.admin import output
from nstance.model import durations
from nstance.model.ids import ShardId

Record = dict[str, Any]

GROUP_COLUMNS = ("group", "template", "type", "size", "actual", "ready", "notes")
INSTANCE_COLUMNS = ("instance", "group", "state", "ready", "age", "notes")
REVISION_COLUMNS = ("revision", "outcome", "by", "started", "finished", "failures", "message")
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
        "size_source": _size_source(status.size_source),
        "actual_size": status.actual_size,
        "ready_size": status.ready_size,
        "not_ready": status.not_ready,
        "blocked": list(status.blocked),
        "draining": status.draining,
        "on_demand": status.on_demand,
        "instance_type": status.instance_type,
        "subnet_pool": status.subnet_pool,
        "vars": dict(sorted(status.vars.items())),
        "overrides": [_override(each) for each in status.overrides],
        "static": status.static,
        "paused": status.paused,
        "rollout": revision(status.rollout) if status.HasField("rollout") else None,
        "last_error": status.last_error or None,
        "provider_ids": list(status.provider_ids),
        "etag": status.etag,
    }


def _size_source(source: Any) -> Record:
    return {
        "kind": source.kind or None,
        "by": source.by or None,
        "at": moment(source.at_unix_ms),
        "config_size": source.config_size if source.HasField("config_size") else None,
    }


def _override(told: Any) -> Record:
    return {
        "field": told.field,
        "value": told.value,
        "file_value": told.file_value if told.HasField("file_value") else None,
        "by": told.by or None,
        "at": moment(told.at_unix_ms),
    }


def size_source(record: Record) -> str:
    """Where a group's size comes from, in words: `api by opr-1 at 2026-01-31T12:00:00Z, the config file says 5`."""
    source = record["size_source"]
    by = f" by {source['by']} at {source['at'][:19]}Z" if source["by"] else ""
    file = source["config_size"]
    return f"{source['kind']}{by}" + (f", the config file says {file}" if is_overridden(record) else "")


def is_overridden(record: Record) -> bool:
    """The config file has another size for it than the one that counts."""
    file = record["size_source"]["config_size"]
    return bool(record["static"] and file is not None and file != record["size"])


def group_lines(record: Record) -> Record:
    """For `group show`, without nested values."""
    overrides = [
        f"{each['field']}={each['value']} by {each['by'] or 'unknown'}"
        + (f" at {each['at'][:19]}Z" if each["at"] else "")
        + (f" (config file: {each['file_value']})" if each["file_value"] is not None else "")
        for each in record["overrides"]
    ]
    vars = [f"{name}={value}" for name, value in record["vars"].items()]
    told = {"size_source": size_source(record), "vars": vars, "overrides": overrides}
    return {**record, **told, "rollout": _rollout_line(record["rollout"])}


def revision(status: Any) -> Record:
    return {
        "revision": short(status.revision),
        "outcome": status.outcome,
        "by": status.by or None,
        "started": moment(status.started_unix_ms),
        "finished": moment(status.finished_unix_ms),
        "updated": status.updated,
        "ready": status.ready,
        "outdated": status.outdated,
        "failures": status.failures,
        "message": status.message or None,
    }


def short(revision: str) -> str:
    """Enough of it to name it."""
    return revision.removeprefix("sha256:")[:12]


def revision_row(shard: ShardId, record: Record) -> Record:
    return {"shard": shard, **record, "message": record["message"] or ""}


def _rollout_marks(rollout: Record | None) -> list[str]:
    if rollout is None:
        return []
    marks = [rollout["message"]] if (rollout["message"] or "").startswith("rolled back") else []
    if rollout["outcome"] == "rolling" and rollout["outdated"]:
        marks.append(f"rolling out: {rollout['updated']} of {rollout['updated'] + rollout['outdated']}")
    if rollout["outcome"] in ("paused", "halted"):
        marks.append(f"rollout {rollout['outcome']}: {rollout['message'] or ''}")
    return marks


def _rollout_line(rollout: Record | None) -> str | None:
    if rollout is None:
        return None
    count = f"{rollout['updated']} instances, {rollout['ready']} of them ready, {rollout['outdated']} of others"
    line = f"{rollout['outcome']} {rollout['revision']} by {rollout['by']}: {count}"
    return f"{line}; {rollout['message']}" if rollout["message"] else line


def group_row(record: Record) -> Record:
    marks = ["static"] if record["static"] else []
    marks += [f"size {size_source(record)}"] if record["static"] and record["size_source"]["kind"] != "config" else []
    marks += ["paused"] if record["paused"] else []
    marks += _rollout_marks(record["rollout"])
    marks += [f"{record['draining']} draining"] if record["draining"] else []
    marks += [f"{record['on_demand']} on demand"] if record["on_demand"] else []
    marks += [f"{record['not_ready']} not ready"] if record["not_ready"] else []
    marks += [f"blocked: {reason}" for reason in record["blocked"]]
    marks += [record["last_error"]] if record["last_error"] and record["last_error"] not in record["blocked"] else []
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
        "cloned": status.cloned,
        # An older server says nothing of readiness: there, who runs is ready.
        "ready": status.state == "running" and not status.not_ready,
        "not_ready": status.not_ready or None,
        "first_ready": moment(status.ready_unix_ms),
        "revision": status.revision or None,
        "checks": [
            {
                "name": check.name,
                "passing": check.passing,
                "message": check.message or None,
                "since": moment(check.since_unix_ms),
            }
            for check in status.checks
        ],
    }


def instance_lines(record: Record) -> Record:
    """For `instance show`, without nested values."""
    checks = [
        f"{check['name']} {'passing' if check['passing'] else 'failing'}"
        + (f" since {check['since'][:19]}Z" if check["since"] else "")
        + (f" ({check['message']})" if check["message"] else "")
        for check in record["checks"]
    ]
    return {**record, "checks": checks}


def instance_row(record: Record, *, now: float) -> Record:
    born = record["created"]
    return {
        "shard": record["shard"],
        "instance": record["instance_id"],
        "group": record["group"],
        "state": record["state"],
        "ready": "yes" if record["ready"] else "no",
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
    elif record["not_ready"] and not record["suspect"]:
        marks.append(f"not ready: {record['not_ready']}")
    if record["cloned"]:
        marks.append("two agents use its identity")
    if record["reason"]:
        marks.append(record["reason"])
    if record["drain_deadline"]:
        marks.append(f"until {_soon(record['drain_deadline'], now)}")
    return [mark.replace("on_demand", "on-demand") for mark in marks]


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
        "warnings": list(answer.warnings),
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
