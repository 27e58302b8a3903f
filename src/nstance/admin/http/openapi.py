"""The schemas of answers of the routes without a version."""

from collections.abc import Mapping

from nstance.admin.json_schema import FLAG, NUMBER, TEXT, TIME, Schema, list_schema, optional_ref, record_schema, ref
from nstance.admin.shard import costs, records


def reply_schema(name: str, item: str) -> Schema:
    """`errors` names the shards that failed; it is left out if none did."""
    schema = record_schema({name: list_schema(ref(item))})
    schema["properties"] |= {"errors": list_schema(ref("ShardError")), "error": TEXT}
    return schema


SHARD_ERROR = record_schema({"shard error": TEXT})
HISTORY = record_schema({"shard group": TEXT, "revisions": list_schema(ref("Revision"))})
SCHEMAS: Mapping[str, Schema] = {
    "Error": record_schema({"error": TEXT}),
    "ShardError": SHARD_ERROR,
    "ConfigStatus": record_schema({"shard etag": TEXT, "last_modified": TIME, "size": NUMBER}),
    "Refreshed": record_schema({"shard": TEXT, "updated": FLAG, "etag": TEXT}),
    "Steered": record_schema({"shard group": TEXT, "rollout": optional_ref("Revision")}),
    "Revision": records.REVISION.schema,
    "History": HISTORY,
    "Scaled": record_schema({"shard group": TEXT, "size": NUMBER}),
    "Cost": costs.COST.schema,
    "Group": records.GROUP.schema,
    "Instance": records.INSTANCE.schema,
    "Event": records.EVENT.schema,
}
