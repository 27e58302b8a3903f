"""The HTTP application: all routes, behind access control."""

import functools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Middleware

from nstance.admin import errors, output
from nstance.admin.client import Client
from nstance.admin.http import access, stream
from nstance.admin.http.access_log import AccessLog
from nstance.admin.http.fleet import Fleet
from nstance.admin.http.forecasts import Forecasts
from nstance.admin.http.metrics import ServeMetrics
from nstance.admin.http.oidc.provider import Provider
from nstance.admin.http.pages import Pages
from nstance.admin.http.problems import ProblemError
from nstance.admin.http.rate_limit import REQUESTS, Rate, RateLimit
from nstance.admin.http.sessions import COOKIE, Sessions
from nstance.admin.http.tenants import HEADER as TENANT
from nstance.admin.http.tenants import TenantView, TenantViews
from nstance.admin.http.unversioned import UnversionedRoutes
from nstance.admin.http.v1.api import ApiContext
from nstance.admin.http.v1.api import routes as routes_v1
from nstance.admin.http.v1.replies import Shards
from nstance.admin.options import Target
from nstance.clock import Clock, SystemRng
from nstance.objects import errors as storage
from nstance.wire import server_header

MAX_BODY_BYTES = 64 * 1024
UNLIMITED_PATHS = frozenset({"/", "/health"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What `serve` may have beyond shards, and its limits."""

    storage: Target | None = None  # to read
    log: AccessLog | None = None
    provider: Provider | None = None  # of identities
    requests: Rate = REQUESTS
    streams: stream.Limits = stream.LIMITS


def application(
    clients: Sequence[Client], guard: access.Access, clock: Clock, extras: Extras | None = None
) -> web.Application:
    server_header.hide_versions()
    extras, rng = extras or Extras(), SystemRng()
    sessions, pages = Sessions(clock, rng), Pages()

    def view(clients: Sequence[Client]) -> TenantView:
        fleet, forecasts = Fleet(clients, clock, rng), Forecasts(clock, rng)
        streams = stream.Streams(fleet, extras.streams)
        context = ApiContext(
            clients=clients,
            guard=guard,
            sessions=sessions,
            fleet=fleet,
            streams=streams,
            forecasts=forecasts,
            storage=extras.storage,
            clock=clock,
            rng=rng,
            provider=extras.provider,
        )
        old = UnversionedRoutes(Shards(clients), streams, pages, show_metrics).routes()
        found = {(route.method, route.path): route for route in (*routes_v1(context), *old)}
        return TenantView(fleet=fleet, streams=streams, forecasts=forecasts, routes=found)

    async def show_metrics(request: web.Request) -> web.Response:
        return await metrics.answer(request)  # of this program, for every tenant the same

    views = TenantViews(clients, view)
    metrics = ServeMetrics(views.own.fleet, views.count_streams)
    app = web.Application(
        middlewares=[
            access.forwarding_middleware(guard.trusted_proxies),
            *([extras.log.middleware()] if extras.log is not None else []),
            metrics.middleware(),
            _rate_limit(RateLimit(extras.requests, clock), sessions),
            access.access_middleware(guard, sessions),
            _errors_as_json,
        ],
        client_max_size=MAX_BODY_BYTES,
    )

    async def background(app: web.Application) -> AsyncIterator[None]:
        async with views.running():
            yield

    app.cleanup_ctx.append(background)
    app.router.add_get(access.PAGES + "{path:.+}", pages.file)
    for method, path in views.own.routes:
        add = app.router.add_get if method == "GET" else functools.partial(app.router.add_route, method)  # HEAD too
        add(path, _handler(views, method, path))
    return app


def _handler(views: TenantViews, method: str, path: str) -> access.Handler:
    async def respond(request: web.Request) -> web.StreamResponse:
        return await (await _view(views, request)).routes[method, path].respond(request)

    return respond


async def _view(views: TenantViews, request: web.Request) -> TenantView:
    return await views.of(request.get(access.CALLER), request.headers.get(TENANT))


@web.middleware
async def _errors_as_json(request: web.Request, handler: access.Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ProblemError as error:
        return access.rejected(request, error.status, str(error), **error.headers)
    except stream.TooManyStreamsError as error:
        return access.rejected(request, 503, str(error))
    except (storage.StorageError, TimeoutError) as error:
        return access.rejected(request, 503, errors.explain(error))
    except errors.CommandError as error:
        return access.rejected(request, 502, errors.explain(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return access.rejected(request, error.status, _explain(request, error), **headers)
    except Exception as bug:
        output.note(f"{request.method} {request.path} failed: unexpected {type(bug).__name__}: {bug}")
        return access.rejected(request, 500, "internal error, probably a bug; see the output of nstance-admin serve")


def _explain(request: web.Request, error: web.HTTPException) -> str:
    """Of failures that aiohttp found."""
    match error:
        case web.HTTPNotFound():
            return "there is no such address; /v1/openapi.json lists all"
        case web.HTTPMethodNotAllowed():
            return f"expected {', '.join(sorted(error.allowed_methods))}, found {request.method}"
        case web.HTTPRequestEntityTooLarge():
            return f"expected a body of at most {MAX_BODY_BYTES:,} bytes"
        case _:
            return error.reason.lower()


def _rate_limit(limit: RateLimit, sessions: Sessions) -> Middleware:
    """By session, because all browsers behind a proxy may have one address; by address without one."""

    @web.middleware
    async def check(request: web.Request, handler: access.Handler) -> web.StreamResponse:
        is_limited = request.path not in UNLIMITED_PATHS and not request.path.startswith(access.PAGES)
        session = sessions.read(request.cookies.get(COOKIE, ""))
        client = session.id if session is not None else request.remote or ""
        if is_limited and (delay := limit.delay(client)):
            headers = {"Retry-After": str(int(delay) + 1)}
            return access.rejected(request, 429, "too many requests; try again later", **headers)
        return await handler(request)

    return check
