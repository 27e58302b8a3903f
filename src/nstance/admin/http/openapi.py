"""The API's own description, made from the routes that are served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
MAYBE: Schema = {"type": ["string", "null"]}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
MOMENT: Schema = {"type": ["string", "null"], "format": "date-time"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def thing(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def many(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def answer(name: str, item: Schema) -> Schema:
    """`errors` names the shards that failed; it is left out when none did."""
    whole = thing(**{name: many(item)})
    whole["properties"] = {**whole["properties"], "errors": many(ref("ShardError")), "error": TEXT}
    return whole


SCHEMAS: Mapping[str, Schema] = {
    "Error": thing(error=TEXT),
    "ShardError": thing(shard=TEXT, error=TEXT),
    "ConfigStatus": thing(shard=TEXT, etag=TEXT, last_modified=MOMENT, size=NUMBER),
    "Refreshed": thing(shard=TEXT, updated=FLAG, etag=TEXT),
    "GroupName": thing(group=TEXT),
    "Steered": thing(shard=TEXT, group=TEXT, rollout={"anyOf": [ref("Revision"), {"type": "null"}]}),
    "Revision": thing(
        revision=TEXT,
        outcome=TEXT,
        by=MAYBE,
        started=MOMENT,
        finished=MOMENT,
        updated=NUMBER,
        ready=NUMBER,
        outdated=NUMBER,
        failures=NUMBER,
        message=MAYBE,
    ),
    "History": thing(shard=TEXT, group=TEXT, revisions=many(ref("Revision"))),
    "Scaled": thing(shard=TEXT, group=TEXT, size=NUMBER),
    "ScaleRequest": thing(group=TEXT, size={**NUMBER, "minimum": 0}),
    "Group": thing(
        shard=TEXT,
        group=TEXT,
        tenant=TEXT,
        template=TEXT,
        size=NUMBER,
        size_source=thing(kind=MAYBE, by=MAYBE, at=MOMENT, config_size={"type": ["integer", "null"]}),
        actual_size=NUMBER,
        ready_size=NUMBER,
        not_ready=NUMBER,
        blocked=TEXTS,
        draining=NUMBER,
        on_demand=NUMBER,
        instance_type=TEXT,
        subnet_pool=TEXT,
        vars={"type": "object", "additionalProperties": TEXT},
        overrides=many(thing(field=TEXT, value=TEXT, file_value=MAYBE, by=MAYBE, at=MOMENT)),
        static=FLAG,
        paused=FLAG,
        rollout={"anyOf": [ref("Revision"), {"type": "null"}]},
        last_error=MAYBE,
        provider_ids=TEXTS,
        etag=TEXT,
    ),
    "Instance": thing(
        shard=TEXT,
        instance_id=TEXT,
        provider_id=MAYBE,
        group=TEXT,
        state=TEXT,
        reason=MAYBE,
        message=MAYBE,
        on_demand=FLAG,
        suspect=FLAG,
        connected=FLAG,
        drifted=FLAG,
        cloned=FLAG,
        instance_type=TEXT,
        subnet=MAYBE,
        ipv4=MAYBE,
        ipv6=MAYBE,
        hostname=MAYBE,
        created=MOMENT,
        registered=MOMENT,
        last_report=MOMENT,
        drain_deadline=MOMENT,
        vm_status=TEXT,
        vm_gone=FLAG,
        replaces=MAYBE,
        ready=FLAG,
        not_ready=MAYBE,
        first_ready=MOMENT,
        revision=MAYBE,
        checks=many(thing(name=TEXT, passing=FLAG, message=MAYBE, since=MOMENT)),
    ),
    "Event": thing(shard=TEXT, time=MOMENT, group=TEXT, instance_id=TEXT, reason=TEXT, message=TEXT),
}

PARAMETERS: Mapping[str, tuple[str, Schema]] = {
    "shard": ("The shard to ask; or all_shards.", TEXT),
    "all_shards": ("Ask all shards.", FLAG),
    "group": ("Only of this group.", TEXT),
    "instance": ("Only of this instance.", TEXT),
    "deleted": ("Also those that were deleted or failed lately.", FLAG),
    "limit": ("The newest so many.", {**NUMBER, "minimum": 0, "maximum": 1000, "default": 100}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one route is, for the description and for checking its query."""

    summary: str
    query: Sequence[str] = ()
    body: str | None = None
    reply: Schema
    stream: bool = False  # also as server-sent events
    media: str = "application/json"

    @property
    def guarded(self) -> bool:
        """It says something about shards."""
        return bool(self.query)


def document(operations: Mapping[tuple[str, str], Operation], *, version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in operations.items():
        paths.setdefault(path, {})[method.lower()] = _described(method, path, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Nstance admin API", "version": version},
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}, "mtls": {"type": "mutualTLS"}},
        },
        "security": [{"bearer": []}, {"mtls": []}],
    }


def _described(method: str, path: str, operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media: {"schema": operation.reply}}
    if operation.stream:
        content["text/event-stream"] = {"schema": TEXT}
    # Refused before anybody was asked, or by all shards.
    failure = {"anyOf": [ref("Error"), operation.reply]} if operation.query else ref("Error")
    described: dict[str, Any] = {
        "operationId": "-".join([method.lower(), *filter(None, path.replace(".", "/").split("/"))]),
        "summary": operation.summary,
        "parameters": [
            {"name": name, "in": "query", "description": PARAMETERS[name][0], "schema": PARAMETERS[name][1]}
            for name in operation.query
        ],
        "responses": {
            "200": {"description": "All shards answered.", "content": content},
            **({"207": {"description": "Some shards failed.", "content": content}} if operation.query else {}),
            "default": {"description": "It failed.", "content": {"application/json": {"schema": failure}}},
        },
    }
    if not operation.guarded:
        described["security"] = []
    if operation.body:
        body = {"required": True, "content": {"application/json": {"schema": ref(operation.body)}}}
        described["requestBody"] = body
    return described
