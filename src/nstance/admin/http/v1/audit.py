"""The audit: who did what, and whether the journal is the one that was written. Reads the bucket, for admins only."""

from aiohttp import web

from nstance.admin.cluster import audit, operators
from nstance.admin.http.v1 import fields
from nstance.admin.http.v1.bucket import ONE_SHARD, BucketRoutes
from nstance.admin.http.v1.fields import Fields, field
from nstance.admin.http.v1.replies import Shards, answer
from nstance.admin.http.v1.routing import Call, RouteGroup, route
from nstance.admin.json_schema import NUMBER, OPTIONAL, OPTIONAL_NUMBER, TEXT, TEXTS, TIME, list_schema, record_schema
from nstance.model.roles import Role

DEFAULT_ENTRIES = 100
PROBLEMS = list_schema(record_schema({"slot": NUMBER, "message": TEXT}))
FILTERS: Fields = {
    **ONE_SHARD,
    "person": field(fields.TEXT, "Only of this person or operator."),
    "tenant": field(fields.NAME, "Only of this tenant."),
    "group": field(fields.NAME, "Only of this group."),
    "instance": field(fields.INSTANCE, "Only of this instance."),
    "action": field(fields.TEXT, "Only with this reason."),
    "since": field(fields.TIME, "Only from this time on."),
    "until": field(fields.TIME, "Only until this time."),
    "all": field(fields.FLAG, "Also what no person or operator asked for."),
    "limit": field(fields.PAGE_SIZE, "The newest so many."),
}
ENTRY = record_schema(
    {
        "time": TIME,
        "shard tenant action message": TEXT,
        "slot": NUMBER,
        "group instance": OPTIONAL,
        "operators persons": TEXTS,
    }
)
VERIFIED = record_schema(
    {
        "shard": TEXT,
        "first_slot last_slot linked_from": OPTIONAL_NUMBER,
        "snapshots": NUMBER,
        "head": OPTIONAL,
        "problems": PROBLEMS,
    }
)


class AuditRoutes(RouteGroup):
    tag = "audit"

    def __init__(self, shards: Shards, bucket: BucketRoutes) -> None:
        self._shards = shards
        self._bucket = bucket

    @route(
        "GET",
        "/v1/cluster/audit",
        "Who did what, oldest first, from a shard's journal. `problems`: slots that cannot be read.",
        query=FILTERS,
        reply=record_schema({"entries": list_schema(ENTRY), "problems": PROBLEMS}),
        role=Role.ADMIN,
    )
    async def list(self, call: Call) -> web.Response:
        shard = self._shards.one(call.query["shard"]).shard
        asked = {name: call.query[name] for name in FILTERS if name in call.query}
        limit = asked.pop("limit", DEFAULT_ENTRIES)
        asked |= {name: fields.time(asked[name]) for name in ("since", "until") if name in asked}
        del asked["shard"]
        wanted = audit.AuditFilter(everything=asked.pop("all", False), **asked)
        found, damaged = await audit.collect(self._bucket.required(), shard, wanted, limit=limit)
        return answer(call, {"entries": found, "problems": [audit.problem(each) for each in damaged]})

    @route(
        "GET",
        "/v1/cluster/audit/verify",
        "Check that no slot of a shard's journal was altered, removed or moved.",
        query={**ONE_SHARD, "head": field(fields.HEAD, "A `head` of an earlier answer.")},
        reply=VERIFIED,
        role=Role.ADMIN,
    )
    async def verify(self, call: Call) -> web.Response:
        shard = self._shards.one(call.query["shard"]).shard
        noted = audit.parse_head(call.query["head"]) if "head" in call.query else None
        return answer(call, (await audit.verify(self._bucket.required(), shard, noted=noted)).record(shard))

    @route(
        "GET",
        "/v1/cluster/operators",
        "Registered operators of all tenants, including revoked ones.",
        reply=record_schema(
            {"operators": list_schema(record_schema({"operator tenant role": TEXT, "issued expires revoked": TIME}))}
        ),
        role=Role.ADMIN,
    )
    async def operators(self, call: Call) -> web.Response:
        found = await operators.list_operators(self._bucket.required())
        return answer(call, {"operators": [operators.record(each) for each in found]})
