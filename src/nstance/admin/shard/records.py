"""Shards' messages as records for programs, and as rows and lines for people."""

import datetime
from collections import Counter
from collections.abc import Iterable
from typing import Any

from nstance.admin import output
from nstance.admin.shard import costs
from nstance.model import durations
from nstance.model.ids import ShardId

Record = dict[str, Any]

GROUP_COLUMNS = ("group", "template", "type", "size", "actual", "ready", "cost", "notes")
INSTANCE_COLUMNS = ("instance", "group", "state", "ready", "age", "notes")
REVISION_COLUMNS = ("revision", "outcome", "by", "started", "finished", "failures", "message")
PLAN_COLUMNS = ("action", "instance", "reason", "message")


def timestamp_ms(milliseconds: int) -> str | None:
    """In UTC. None for 0, which means never or unknown."""
    if not milliseconds:
        return None
    at = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age(seconds: float) -> str:
    """In its two largest units: 3d4h, 5m10s, 12s."""
    rounded = max(0, int(seconds))
    for step, unit in ((86400, 3600), (3600, 60), (60, 1)):
        if rounded >= step:
            return durations.format(rounded // unit * unit)
    return f"{rounded}s"


def age_since(time: str | None, now: float) -> str:
    return age(now - datetime.datetime.fromisoformat(time).timestamp()) if time else ""


def _pick(message: Any, *names: str) -> Record:
    return {name: getattr(message, name) for name in names}


def _pick_optional(message: Any, *names: str) -> Record:
    """None for an empty text."""
    return {name: getattr(message, name) or None for name in names}


def _pick_times(message: Any, **names: str) -> Record:
    return {name: timestamp_ms(getattr(message, field)) for name, field in names.items()}


def group(shard: ShardId, status: Any) -> Record:
    return {
        "shard": shard,
        "group": status.key,
        **_pick(status, "tenant", "template", "size"),
        "size_source": _size_source(status.size_source),
        **_pick(status, "actual_size", "ready_size", "not_ready"),
        "blocked": list(status.blocked),
        **_pick(status, "draining", "on_demand", "instance_type", "subnet_pool"),
        "instance_types": list(status.instance_types),
        "markets": list(status.markets),
        "prefer": status.prefer or None,
        "exhausted_offers": [_exhausted_offer(each) for each in status.exhausted_offers],
        "vars": dict(sorted(status.vars.items())),
        "overrides": [_override(each) for each in status.overrides],
        **_pick(status, "static", "paused"),
        "rollout": revision(status.rollout) if status.HasField("rollout") else None,
        "rolled_back_from": short(status.rolled_back_from) or None,
        "file_instance_type": status.file_instance_type or None,
        "last_error": status.last_error or None,
        "provider_ids": list(status.provider_ids),
        "cost": costs.record(status.cost) if status.HasField("cost") else None,
        "etag": status.etag,
    }


def _size_source(source: Any) -> Record:
    return {
        "kind": source.kind or None,
        "by": source.by or None,
        "at": timestamp_ms(source.at_unix_ms),
        "config_size": source.config_size if source.HasField("config_size") else None,
    }


def _override(override: Any) -> Record:
    return {
        **_pick(override, "field", "value"),
        "file_value": override.file_value if override.HasField("file_value") else None,
        "by": override.by or None,
        "at": timestamp_ms(override.at_unix_ms),
    }


def _exhausted_offer(offer: Any) -> Record:
    return {
        **_pick_optional(offer, "market", "instance_type", "subnet", "message"),
        "retry": timestamp_ms(offer.retry_unix_ms),
        "server_error": offer.server_error,
    }


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


def revision(status: Any) -> Record:
    return {
        "revision": short(status.revision),
        "outcome": status.outcome,
        "by": status.by or None,
        **_pick_times(status, started="started_unix_ms", finished="finished_unix_ms"),
        **_pick(status, "updated", "ready", "outdated", "failures"),
        "message": status.message or None,
    }


def short(revision: str) -> str:
    """Enough digits to identify it."""
    return revision.removeprefix("sha256:")[:12]


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


def instance(shard: ShardId, status: Any) -> Record:
    return {
        "shard": shard,
        "instance_id": status.instance_id,
        "provider_id": status.provider_id or None,
        **_pick(status, "group", "state"),
        **_pick_optional(status, "reason", "message"),
        **_pick(status, "on_demand", "suspect", "connected", "drifted", "instance_type"),
        **_pick_optional(status, "market", "subnet", "ipv4", "ipv6", "hostname"),
        **_pick_times(
            status,
            created="created_unix_ms",
            registered="registered_unix_ms",
            last_report="last_report_unix_ms",
            drain_deadline="drain_deadline_unix_ms",
        ),
        **_pick(status, "vm_status", "vm_gone"),
        "replaces": status.replaces or None,
        "cloned": status.cloned,
        # Older servers do not report readiness: a running instance counts as ready there.
        "ready": status.state == "running" and not status.not_ready,
        "not_ready": status.not_ready or None,
        "first_ready": timestamp_ms(status.ready_unix_ms),
        "revision": status.revision or None,
        "checks": [
            {
                **_pick(check, "name", "passing"),
                "message": check.message or None,
                "since": timestamp_ms(check.since_unix_ms),
            }
            for check in status.checks
        ],
    }


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


def event(shard: ShardId, message: Any) -> Record:
    return {
        "shard": shard,
        "time": timestamp_ms(message.time_unix_ms),
        **_pick(message, "group", "instance_id", "reason", "message"),
    }


def numbered_event(shard: ShardId, message: Any) -> Record:
    """With what a program needs to follow events, and to tell problems from the rest."""
    return {**event(shard, message), "id": message.id, "trouble": message.trouble}


def group_with_hashes(shard: ShardId, status: Any) -> Record:
    hashes = {"infra_hash": status.infra_hash or None, "runtime_hash": status.runtime_hash or None}
    return {**group(shard, status), **hashes}


def instance_with_report(shard: ShardId, status: Any) -> Record:
    return {**instance(shard, status), "report": _report(status.report) if status.HasField("report") else None}


def _report(report: Any) -> Record:
    numbers = ("uptime_seconds", "cpu_percent", "memory_percent", "disk_percent", "load1")
    return {
        "version": report.version,
        **{name: round(getattr(report, name), 3) for name in numbers},
        **_pick_optional(report, "files_hash", "wanted_files_hash", "files_error"),
        "files": [
            {**_pick(file, "name", "sha256"), "expires": timestamp_ms(file.expires_unix * 1000)}
            for file in report.files
        ],
    }


def control_plane(status: Any) -> Record:
    return {
        **_pick(status, "leader", "epoch", "leading_ms", "provider_rate"),
        "standbys": [_pick(each, "server", "answered_ms") for each in status.standbys],
        "metrics": [
            {"name": each.name, "labels": dict(sorted(each.labels.items())), "value": each.value}
            for each in status.metrics
        ],
    }


def cost_plan(shard: ShardId, plan: Any) -> Record:
    return {"shard": shard, **costs.plan_record(plan)}


def rollout_plan(shard: ShardId, plan: Any) -> Record:
    return {
        "shard": shard,
        **_pick(plan, "instances", "at_once", "order", "estimate_ms", "extra_vm_ms"),
        "held": plan.held or None,
    }


def config(shard: ShardId, status: Any) -> Record:
    return {
        "shard": shard,
        "etag": status.etag,
        "last_modified": output.timestamp(status.last_modified_unix or None),
        **_pick(status, "size", "leader", "epoch", "cluster"),
        "errors": list(status.errors),
    }


def refreshed(shard: ShardId, answer: Any) -> Record:
    lists = {name: list(getattr(answer, name)) for name in ("errors", "needs_restart", "warnings")}
    return {"shard": shard, **_pick(answer, "updated", "previous_etag", "etag"), **lists}


def action(shard: ShardId, planned: Any) -> Record:
    return {
        "shard": shard,
        **_pick(planned, "group", "action"),
        "instance_id": planned.instance_id or None,
        **_pick(planned, "reason", "message"),
    }


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
