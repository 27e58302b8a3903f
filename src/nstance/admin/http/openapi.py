"""Parts of schemas, and the schemas of answers of the routes without a version."""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
OPTIONAL: Schema = {"type": ["string", "null"]}
NUMBER: Schema = {"type": "integer"}
AMOUNT: Schema = {"type": "number"}
OPTIONAL_AMOUNT: Schema = {"type": ["number", "null"]}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def record_schema(fields: Mapping[str, Schema]) -> Schema:
    """Keys are field names, several with the same schema separated by blanks."""
    properties = {name: schema for names, schema in fields.items() for name in names.split()}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def list_schema(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def reply_schema(name: str, item: str) -> Schema:
    """`errors` names the shards that failed; it is left out if none did."""
    schema = record_schema({name: list_schema(ref(item))})
    schema["properties"] |= {"errors": list_schema(ref("ShardError")), "error": TEXT}
    return schema


_ROLLOUT: Schema = {"anyOf": [ref("Revision"), {"type": "null"}]}
_COST: Schema = {"anyOf": [ref("Cost"), {"type": "null"}]}

SCHEMAS: Mapping[str, Schema] = {
    "Error": record_schema({"error": TEXT}),
    "ShardError": record_schema({"shard error": TEXT}),
    "ConfigStatus": record_schema({"shard etag": TEXT, "last_modified": TIME, "size": NUMBER}),
    "Refreshed": record_schema({"shard": TEXT, "updated": FLAG, "etag": TEXT}),
    "Steered": record_schema({"shard group": TEXT, "rollout": _ROLLOUT}),
    "Revision": record_schema(
        {
            "revision outcome": TEXT,
            "by": OPTIONAL,
            "started finished": TIME,
            "updated ready outdated failures": NUMBER,
            "message": OPTIONAL,
        }
    ),
    "History": record_schema({"shard group": TEXT, "revisions": list_schema(ref("Revision"))}),
    "Scaled": record_schema({"shard group": TEXT, "size": NUMBER}),
    "Cost": record_schema({"currency": TEXT, "hourly": AMOUNT, "instance_hourly": OPTIONAL_AMOUNT, "unpriced": NUMBER}),
    "Group": record_schema(
        {
            "shard group tenant template instance_type subnet_pool etag": TEXT,
            "size actual_size ready_size not_ready draining on_demand": NUMBER,
            "static paused": FLAG,
            "last_error prefer rolled_back_from file_instance_type": OPTIONAL,
            "blocked provider_ids instance_types markets": TEXTS,
            "exhausted_offers": list_schema(
                record_schema({"market instance_type subnet message": OPTIONAL, "retry": TIME, "server_error": FLAG})
            ),
            "vars": {"type": "object", "additionalProperties": TEXT},
            "rollout": _ROLLOUT,
            "cost": _COST,
            "size_source": record_schema(
                {"kind by": OPTIONAL, "at": TIME, "config_size": {"type": ["integer", "null"]}}
            ),
            "overrides": list_schema(record_schema({"field value": TEXT, "file_value by": OPTIONAL, "at": TIME})),
        }
    ),
    "Instance": record_schema(
        {
            "shard instance_id group state instance_type vm_status": TEXT,
            "provider_id reason message market subnet ipv4 ipv6 hostname replaces not_ready revision": OPTIONAL,
            "on_demand suspect connected drifted cloned vm_gone ready": FLAG,
            "created registered last_report drain_deadline first_ready": TIME,
            "checks": list_schema(record_schema({"name": TEXT, "passing": FLAG, "message": OPTIONAL, "since": TIME})),
        }
    ),
    "Event": record_schema({"shard": TEXT, "time": TIME, "group instance_id reason message": TEXT}),
}
