"""Shards: their control planes, their configurations, what needs attention, and operators."""

from typing import Any

from aiohttp import web

from nstance.admin.client import Client
from nstance.admin.http.fleet import Fleet
from nstance.admin.http.v1 import fields, schemas
from nstance.admin.http.v1.fields import field
from nstance.admin.http.v1.replies import Shards, answer
from nstance.admin.http.v1.routing import ONE_OR_ALL, SHARD, Call, RouteGroup, changing, route
from nstance.admin.json_schema import FLAG, TEXT, list_schema, record_schema, ref
from nstance.admin.shard import diff, overview, records
from nstance.clock import Clock
from nstance.model.roles import Role


class ShardRoutes(RouteGroup):
    tag = "shards"

    def __init__(self, shards: Shards, fleet: Fleet, clock: Clock) -> None:
        self._shards = shards
        self._fleet = fleet
        self._clock = clock

    @route(
        "GET",
        "/v1/shards",
        "Shards with their leaders, standbys, configurations and terms, as known to this program.",
        query=SHARD,
        reply=record_schema({"shards": list_schema(ref("Shard"))}),
    )
    async def shards(self, call: Call) -> web.Response:
        feeds = [self._fleet.feeds[client.shard] for client in self._shards.of(call)]
        return answer(call, {"shards": [{**feed.record(), "terms": [*feed.terms]} for feed in feeds]})

    @route(
        "GET",
        "/v1/alarms",
        "What a person should look at, the worst first.",
        reply=record_schema({"alarms": list_schema(ref("Alarm"))}),
    )
    async def alarms(self, call: Call) -> web.Response:
        return answer(call, {"alarms": self._fleet.alarms()})

    @route(
        "GET",
        "/v1/status",
        "Each shard with its groups and what needs attention.",
        query=SHARD,
        reply=schemas.listed("shards", "StatusDocument"),
    )
    async def status(self, call: Call) -> web.Response:
        now = self._clock.wall()
        answers = await self._shards.ask(call, lambda client: overview.load_shard(client, now=now))
        return answer(call, {"shards": [overview.document(view) for _, view in answers.results]}, answers)

    @route("GET", "/v1/config", "The active configurations.", query=SHARD, reply=schemas.listed("shards", "Config"))
    async def config(self, call: Call) -> web.Response:
        answers = await self._shards.ask(call, lambda client: client.call("GetConfigStatus"))
        return answer(call, {"shards": [records.config(shard, each) for shard, each in answers.results]}, answers)

    @route(
        "GET",
        "/v1/config/diff",
        "Groups' settings in the file, set through the API, active, and actual.",
        query={**SHARD, "group": field(fields.NAME, "Only of this group.")},
        reply=schemas.listed("settings", "Difference"),
    )
    async def diff(self, call: Call) -> web.Response:
        answers = await self._shards.ask(call, lambda client: diff.compare(client, call.query.get("group")))
        answers.ignore_not_found()
        return answer(call, {"settings": [row for _, rows in answers.results for row in rows]}, answers)

    @changing(
        "POST",
        "/v1/config/refresh",
        "Read the configuration from the bucket now.",
        reply=schemas.listed("shards", "Refreshed"),
    )
    async def refresh(self, call: Call) -> web.Response:
        answers = await self._shards.change(call, lambda client: client.call("RefreshConfig", dry_run=call.is_dry_run))
        found = [
            {
                **records.REFRESHED.fill(each, shard=shard),
                "plan": records.actions(shard, each.plan),
            }
            for shard, each in answers.results
        ]
        return answer(call, {"shards": found}, answers)

    @changing(
        "POST",
        "/v1/operators/{operator}/revoke",
        "Revoke an operator of the tenant: the shards reject it at once.",
        query=ONE_OR_ALL,
        reply=schemas.with_errors({"revoked": list_schema(record_schema({"shard operator": TEXT, "revoked": FLAG}))}),
        tag="operators",
        role=Role.ADMIN,
    )
    async def revoke(self, call: Call) -> web.Response:
        operator = call.path["operator"]

        async def work(client: Client) -> Any:
            return await client.call("RevokeOperator", operator_id=operator)

        answers = (await self._shards.change(call, work)).ignore_not_found()
        found = [{"shard": shard, "operator": operator, "revoked": True} for shard, _ in answers.results]
        return answer(call, {"revoked": found}, answers)
