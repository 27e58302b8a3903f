"""Parts of JSON schemas."""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
OPTIONAL: Schema = {"type": ["string", "null"]}
NUMBER: Schema = {"type": "integer"}
OPTIONAL_NUMBER: Schema = {"type": ["integer", "null"]}
REAL: Schema = {"type": "number"}
OPTIONAL_REAL: Schema = {"type": ["number", "null"]}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def record_schema(fields: Mapping[str, Schema]) -> Schema:
    """Keys are field names, several with the same schema separated by blanks."""
    properties = {name: schema for names, schema in fields.items() for name in names.split()}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def list_schema(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def map_schema(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def optional_ref(name: str) -> Schema:
    return {"anyOf": [ref(name), {"type": "null"}]}
