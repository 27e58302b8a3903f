"""The schemas of version 1's answers."""

from collections.abc import Mapping

from nstance.admin.http import openapi
from nstance.admin.http.openapi import (
    FLAG,
    NUMBER,
    OPTIONAL,
    OPTIONAL_AMOUNT,
    TEXT,
    TEXTS,
    TIME,
    Schema,
    list_schema,
    record_schema,
    ref,
)

REAL: Schema = {"type": "number"}


def optional(name: str) -> Schema:
    return {"anyOf": [ref(name), {"type": "null"}]}


def _extended(name: str, fields: Mapping[str, Schema]) -> Schema:
    """A schema of the older routes with more fields."""
    base = openapi.SCHEMAS[name]
    more = record_schema(fields)
    return {
        **base,
        "properties": {**base["properties"], **more["properties"]},
        "required": [*base["required"], *more["required"]],
    }


def with_errors(fields: Mapping[str, Schema]) -> Schema:
    """`errors` names the shards that failed; it is left out if none did."""
    schema = record_schema(fields)
    schema["properties"]["errors"] = list_schema(ref("ShardError"))
    return schema


def listed(name: str, item: str, *, next: bool = False) -> Schema:
    """What several shards list. `next` is left out on the last page."""
    schema = with_errors({name: list_schema(ref(item))})
    if next:
        schema["properties"]["next"] = TEXT
    return schema


PROBLEM: Schema = {
    "type": "object",
    "description": "RFC 9457",
    "properties": {
        "type": TEXT,
        "title": TEXT,
        "status": NUMBER,
        "detail": TEXT,
        "errors": list_schema(ref("ShardError")),
    },
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": False,
}

SCHEMAS: Mapping[str, Schema] = {
    "Problem": PROBLEM,
    "ShardError": openapi.SCHEMAS["ShardError"],
    "Revision": openapi.SCHEMAS["Revision"],
    "Cost": openapi.SCHEMAS["Cost"],
    "Group": _extended("Group", {"infra_hash runtime_hash": OPTIONAL}),
    "Instance": _extended("Instance", {"report": optional("Report")}),
    "ListedInstance": openapi.SCHEMAS["Instance"],
    "Report": record_schema(
        {
            "version": TEXT,
            "uptime_seconds cpu_percent memory_percent disk_percent load1": REAL,
            "files_hash wanted_files_hash files_error": OPTIONAL,
            "files": list_schema(record_schema({"name sha256": TEXT, "expires": TIME})),
        }
    ),
    "Event": _extended("Event", {"id": NUMBER, "trouble": FLAG}),
    "Action": record_schema({"shard group action reason message": TEXT, "instance_id": OPTIONAL}),
    "RolloutPlan": record_schema(
        {"shard order": TEXT, "instances at_once estimate_ms extra_vm_ms": NUMBER, "held": OPTIONAL}
    ),
    "CostPlan": record_schema({"shard currency": TEXT, "hourly_before hourly_after once": OPTIONAL_AMOUNT}),
    "Plan": with_errors(
        {
            "plan": list_schema(ref("Action")),
            "rollouts": list_schema(ref("RolloutPlan")),
            "costs": list_schema(ref("CostPlan")),
            "paused": FLAG,
            "warnings": TEXTS,
        }
    ),
    "Change": with_errors(
        {
            "dry_run paused": FLAG,
            "plan": list_schema(ref("Action")),
            "rollouts": list_schema(ref("RolloutPlan")),
            "costs": list_schema(ref("CostPlan")),
            "groups": list_schema(ref("Group")),
            "instances": list_schema(ref("ListedInstance")),
            "warnings": TEXTS,
        }
    ),
    "Config": record_schema(
        {"shard etag leader cluster": TEXT, "last_modified": TIME, "size epoch": NUMBER, "errors": TEXTS}
    ),
    "Refreshed": record_schema(
        {
            "shard previous_etag etag": TEXT,
            "updated": FLAG,
            "errors needs_restart warnings": TEXTS,
            "plan": list_schema(ref("Action")),
        }
    ),
    "ControlPlane": record_schema(
        {
            "leader": TEXT,
            "epoch leading_ms": NUMBER,
            "provider_rate": REAL,
            "standbys": list_schema(record_schema({"server": TEXT, "answered_ms": NUMBER})),
            "metrics": list_schema(
                record_schema({"name": TEXT, "labels": {"type": "object", "additionalProperties": TEXT}, "value": REAL})
            ),
        }
    ),
    "Term": record_schema({"leader": TEXT, "epoch": NUMBER, "since": TIME}),
    "Shard": record_schema(
        {
            "shard tenant": TEXT,
            "reachable": FLAG,
            "error": OPTIONAL,
            "control_plane": optional("ControlPlane"),
            "config": optional("Config"),
            "unknown_vms": NUMBER,
            "storage_errors_at identity_expires read_at": TIME,
            "terms": list_schema(ref("Term")),
        }
    ),
    "Alarm": record_schema(
        {"level": {"type": "string", "enum": ["bad", "warning"]}, "kind shard message": TEXT, "group": OPTIONAL}
    ),
    "Difference": record_schema(
        {
            "shard group setting": TEXT,
            "file api active actual": {"type": ["string", "integer", "null"]},
            "differs": TEXTS,
        }
    ),
    "UnknownVm": record_schema(
        {
            "shard instance_id provider_id group state why": TEXT,
            "first_seen created": TIME,
            "ipv4 ipv6": OPTIONAL,
        }
    ),
    "History": openapi.SCHEMAS["History"],
    "Sizes": record_schema(
        {
            "shard group": TEXT,
            "sizes": list_schema(record_schema({"time": TIME, "size actual ready": NUMBER})),
        }
    ),
    "Session": record_schema(
        {
            "person role version cluster tenant": TEXT,
            "can_change has_storage": FLAG,
            "shards": TEXTS,
            "csrf_token": OPTIONAL,
        }
    ),
    "Forecast": record_schema(
        {
            "id shard scenario state": TEXT,
            "agents": {"type": ["integer", "null"]},
            "hours": REAL,
            "all_spot": FLAG,
            "started finished": TIME,
            "error progress": OPTIONAL,
            "summary": TEXTS,
            "points": list_schema(
                record_schema(
                    {"hour desired ready starting leaving created requests price": REAL},
                )
            ),
            "marks": list_schema(record_schema({"hour": REAL, "text": TEXT})),
        }
    ),
    "StoredConfig": record_schema({"shard config": TEXT}),
    "Slot": {"type": "object", "description": "As `nstance-admin cluster journal -o json` prints it."},
    "StatusDocument": {"type": "object", "description": "As `nstance-admin status -o json` prints it."},
}
