"""The schemas of version 1's answers."""

from collections.abc import Mapping

from nstance.admin.http import openapi
from nstance.admin.json_schema import (
    FLAG,
    NUMBER,
    OPTIONAL,
    OPTIONAL_NUMBER,
    REAL,
    TEXT,
    TEXTS,
    TIME,
    Schema,
    list_schema,
    optional_ref,
    record_schema,
    ref,
)
from nstance.admin.shard import costs, records, unknown_vms
from nstance.admin.shard.shapes import Kind


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
    "ShardError": openapi.SHARD_ERROR,
    "Revision": records.REVISION.schema,
    "Cost": costs.COST.schema,
    "Group": records.GROUP_WITH_HASHES.schema,
    "Instance": records.INSTANCE_WITH_REPORT.schema,
    "ListedInstance": records.INSTANCE.schema,
    "Report": records.REPORT.schema,
    "Event": records.NUMBERED_EVENT.schema,
    "Action": records.ACTION.schema,
    "RolloutPlan": records.ROLLOUT_PLAN.schema,
    "CostPlan": costs.COST_PLAN.schema,
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
    "Config": records.CONFIG.schema,
    "Refreshed": records.REFRESHED.plus(("plan", Kind(list_schema(ref("Action"))))).schema,
    "ControlPlane": records.CONTROL_PLANE.schema,
    "Term": record_schema({"leader": TEXT, "epoch": NUMBER, "since": TIME}),
    "Shard": record_schema(
        {
            "shard tenant": TEXT,
            "reachable": FLAG,
            "error": OPTIONAL,
            "control_plane": optional_ref("ControlPlane"),
            "config": optional_ref("Config"),
            "unknown_vms": NUMBER,
            "identity_expires read_at": TIME,
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
    "UnknownVm": unknown_vms.UNKNOWN_VM.schema,
    "History": openapi.HISTORY,
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
            "agents": OPTIONAL_NUMBER,
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
