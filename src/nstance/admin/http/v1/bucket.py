"""Reading the bucket: configurations, the journal, and the CA certificates. Only if `serve` was given storage.

Nothing here needs the encryption key, and nothing is written.
"""

import contextlib
import json

from aiohttp import web

from nstance.admin import errors
from nstance.admin.cluster import authority, configs, journal, journal_printer
from nstance.admin.http import access
from nstance.admin.http.problems import ProblemError
from nstance.admin.http.v1 import fields
from nstance.admin.http.v1.fields import field
from nstance.admin.http.v1.replies import Shards, answer
from nstance.admin.http.v1.routing import Call, RouteGroup, route
from nstance.admin.json_schema import TEXT, list_schema, record_schema, ref
from nstance.admin.options import Target
from nstance.model.ids import ShardId
from nstance.model.roles import Role

DEFAULT_SLOTS = 20
PEM = "application/x-pem-file"
NO_STORAGE = "this server was started without storage: give `nstance-admin serve` a --storage-bucket"
ONE_SHARD = {"shard": field(fields.NAME, "The shard.", required=True)}


class BucketRoutes(RouteGroup):
    tag = "bucket"

    def __init__(self, shards: Shards, target: Target | None) -> None:
        self._shards = shards
        self._target = target

    async def stored_config(self, shard: ShardId) -> bytes:
        """Raises ProblemError."""
        try:
            return await configs.get(self.required(), shard)
        except errors.CommandError as problem:
            raise ProblemError(404, errors.explain(problem)) from problem

    def required(self) -> Target:
        if self._target is None:
            raise ProblemError(501, NO_STORAGE)
        return self._target

    @route(
        "GET",
        "/v1/cluster/config",
        "A shard's config.jsonc as it is in the bucket.",
        query=ONE_SHARD,
        reply=ref("StoredConfig"),
        role=Role.ADMIN,
    )
    async def config(self, call: Call) -> web.Response:
        shard = self._shards.one(call.query["shard"]).shard
        body = await self.stored_config(shard)
        return answer(call, {"shard": shard, "config": body.decode("utf-8", "replace")})

    @route(
        "GET",
        "/v1/cluster/journal",
        "Slots of a shard's journal: the newest ones, or from one on.",
        query={
            **ONE_SHARD,
            "from": field(fields.SLOT, "Start at this slot."),
            "limit": field(fields.PAGE_SIZE, "At most so many."),
        },
        reply=record_schema({"slots": list_schema(ref("Slot"))}),
        role=Role.ADMIN,
    )
    async def journal(self, call: Call) -> web.Response:
        shard = self._shards.one(call.query["shard"]).shard
        printer = journal_printer.Printer("json")
        limit, start = call.query.get("limit", DEFAULT_SLOTS), call.query.get("from")
        found = journal.read(self.required(), shard, start=start, limit=limit, follow=False)
        async with contextlib.aclosing(found):
            return answer(call, {"slots": [json.loads(printer.text(slot)) async for slot in found]})

    @route("GET", "/v1/cluster/ca", "The CA certificates.", reply=TEXT, media=(PEM,))
    async def ca(self, call: Call) -> web.Response:
        body = await authority.bundle(self.required())
        return web.Response(body=body, headers={**access.HEADERS, "Content-Type": PEM})
