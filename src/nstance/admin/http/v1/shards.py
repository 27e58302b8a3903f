"""Shards: their control planes, their configurations, what needs attention, and operators."""

from typing import Any

from aiohttp import web

from nstance.admin.client import Client
from nstance.admin.http.fleet import Fleet
from nstance.admin.http.openapi import FLAG, TEXT, list_schema, record_schema, ref
from nstance.admin.http.v1 import fields, schemas
from nstance.admin.http.v1.fields import field
from nstance.admin.http.v1.replies import Shards, answer
from nstance.admin.http.v1.routing import DRY_RUN, ONE_OR_ALL, SHARD, Call, Route
from nstance.admin.shard import diff, overview, records
from nstance.clock import Clock
from nstance.model.roles import Role


class ShardRoutes:
    def __init__(self, shards: Shards, fleet: Fleet, clock: Clock) -> None:
        self._shards = shards
        self._fleet = fleet
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v1/shards",
                handler=self.shards,
                summary="Shards with their leaders, standbys, configurations and terms, as known to this program.",
                query=SHARD,
                reply=record_schema({"shards": list_schema(ref("Shard"))}),
                tag="shards",
                is_partial=False,
            ),
            Route(
                method="GET",
                path="/v1/alarms",
                handler=self.alarms,
                summary="What a person should look at, the worst first.",
                reply=record_schema({"alarms": list_schema(ref("Alarm"))}),
                tag="shards",
                is_partial=False,
            ),
            Route(
                method="GET",
                path="/v1/status",
                handler=self.status,
                summary="Each shard with its groups and what needs attention.",
                query=SHARD,
                reply=schemas.with_errors({"shards": list_schema(ref("StatusDocument"))}),
                tag="shards",
            ),
            Route(
                method="GET",
                path="/v1/config",
                handler=self.config,
                summary="The active configurations.",
                query=SHARD,
                reply=schemas.with_errors({"shards": list_schema(ref("Config"))}),
                tag="shards",
            ),
            Route(
                method="GET",
                path="/v1/config/diff",
                handler=self.diff,
                summary="Groups' settings in the file, set through the API, active, and actual.",
                query={**SHARD, "group": field(fields.NAME, "Only of this group.")},
                reply=schemas.with_errors({"settings": list_schema(ref("Difference"))}),
                tag="shards",
            ),
            Route(
                method="POST",
                path="/v1/config/refresh",
                handler=self.refresh,
                summary="Read the configuration from the bucket now.",
                query={**ONE_OR_ALL, **DRY_RUN},
                reply=schemas.with_errors({"shards": list_schema(ref("Refreshed"))}),
                tag="shards",
                is_change=True,
                role=Role.OPERATOR,
            ),
            Route(
                method="POST",
                path="/v1/operators/{operator}/revoke",
                handler=self.revoke,
                summary="Revoke an operator of the tenant: the shards reject it at once.",
                query=ONE_OR_ALL,
                reply=schemas.with_errors(
                    {"revoked": list_schema(record_schema({"shard operator": TEXT, "revoked": FLAG}))}
                ),
                tag="operators",
                is_change=True,
                role=Role.ADMIN,
            ),
        ]

    async def shards(self, call: Call) -> web.Response:
        feeds = [self._fleet.feeds[client.shard] for client in self._shards.of(call)]
        return answer(call, {"shards": [{**feed.record(), "terms": [*feed.terms]} for feed in feeds]})

    async def alarms(self, call: Call) -> web.Response:
        return answer(call, {"alarms": self._fleet.alarms()})

    async def status(self, call: Call) -> web.Response:
        now = self._clock.wall()
        answers = await self._shards.ask(call, lambda client: overview.load_shard(client, now=now))
        return answer(call, {"shards": [overview.document(view) for _, view in answers.results]}, answers)

    async def config(self, call: Call) -> web.Response:
        answers = await self._shards.ask(call, lambda client: client.call("GetConfigStatus"))
        return answer(call, {"shards": [records.config(shard, each) for shard, each in answers.results]}, answers)

    async def diff(self, call: Call) -> web.Response:
        answers = await self._shards.ask(call, lambda client: diff.compare(client, call.query.get("group")))
        answers.ignore_not_found()
        return answer(call, {"settings": [row for _, rows in answers.results for row in rows]}, answers)

    async def refresh(self, call: Call) -> web.Response:
        answers = await self._shards.change(call, lambda client: client.call("RefreshConfig", dry_run=call.is_dry_run))
        found = [
            {**records.refreshed(shard, each), "plan": [records.action(shard, action) for action in each.plan]}
            for shard, each in answers.results
        ]
        return answer(call, {"shards": found}, answers)

    async def revoke(self, call: Call) -> web.Response:
        operator = call.path["operator"]

        async def work(client: Client) -> Any:
            return await client.call("RevokeOperator", operator_id=operator)

        answers = (await self._shards.change(call, work)).ignore_not_found()
        found = [{"shard": shard, "operator": operator, "revoked": True} for shard, _ in answers.results]
        return answer(call, {"revoked": found}, answers)
