"""All routes of version 1 together."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from aiohttp import web

from nstance.admin.client import Client
from nstance.admin.http.access import Access
from nstance.admin.http.fleet import Fleet
from nstance.admin.http.forecasts import Forecasts
from nstance.admin.http.oidc.provider import Provider
from nstance.admin.http.sessions import Sessions
from nstance.admin.http.stream import Streams
from nstance.admin.http.v1 import routing
from nstance.admin.http.v1.audit import AuditRoutes
from nstance.admin.http.v1.bucket import BucketRoutes
from nstance.admin.http.v1.events import EventRoutes
from nstance.admin.http.v1.forecasting import ForecastRoutes
from nstance.admin.http.v1.groups import Groups
from nstance.admin.http.v1.instances import Instances
from nstance.admin.http.v1.login import LoginRoutes
from nstance.admin.http.v1.replies import Shards, json_response
from nstance.admin.http.v1.routing import Call, Route
from nstance.admin.http.v1.session import SessionRoutes
from nstance.admin.http.v1.shards import ShardRoutes
from nstance.admin.options import Target
from nstance.clock import Clock, Rng


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What the routes are made from."""

    clients: Sequence[Client]
    guard: Access
    sessions: Sessions
    fleet: Fleet
    streams: Streams
    forecasts: Forecasts
    storage: Target | None
    clock: Clock
    rng: Rng
    provider: Provider | None  # of identities


def routes(context: ApiContext) -> list[Route]:
    shards = Shards(context.clients)
    bucket = BucketRoutes(shards, context.storage)
    session = SessionRoutes(
        context.guard,
        context.sessions,
        context.clients[0],
        shards=[str(name) for name in shards.names],
        has_storage=context.storage is not None,
    ).limit_logins(context.clock)
    found = [
        *session.routes(),
        *LoginRoutes(context.provider, context.sessions, context.clock, context.rng).routes(),
        *ShardRoutes(shards, context.fleet, context.clock).routes(),
        *Groups(shards, context.fleet).routes(),
        *Instances(shards).routes(),
        *EventRoutes(shards, context.streams).routes(),
        *bucket.routes(),
        *AuditRoutes(shards, bucket).routes(),
        *ForecastRoutes(shards, context.fleet, bucket, context.forecasts).routes(),
    ]

    async def description(call: Call) -> web.Response:
        return json_response(call.request, routing.document(found, version=metadata.version("nstance")))

    found.append(
        Route(
            method="GET",
            path="/v1/openapi.json",
            handler=description,
            summary="This description.",
            reply={"type": "object"},
            tag="session",
            is_public=True,
        )
    )
    return found
