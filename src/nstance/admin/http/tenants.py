"""What each tenant sees: its own watch of the shards, and routes on top of it.

A server with an ordinary identity has one tenant, that of its certificate. With an identity of role admin it serves every
tenant that its tokens and logins name; a view of it is made when the first of its people comes.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpclib.const import Status

from nstance.admin.client import Client, ShardError
from nstance.admin.http import access
from nstance.admin.http.fleet import Fleet
from nstance.admin.http.forecasts import Forecasts
from nstance.admin.http.problems import ProblemError
from nstance.admin.http.stream import Streams
from nstance.admin.http.v1.routing import Route
from nstance.admin.shard import fanout
from nstance.model import ids
from nstance.model.ids import TenantId
from nstance.model.roles import Role

MAX_TENANTS = 64
HEADER = "Nstance-Tenant"  # with which an admin chooses another tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    fleet: Fleet
    streams: Streams
    forecasts: Forecasts
    routes: Mapping[tuple[str, str], Route]

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        async with self.fleet.running():
            yield
            await self.forecasts.close()


class TenantViews:
    def __init__(self, clients: Sequence[Client], build: Callable[[Sequence[Client]], TenantView]) -> None:
        self._clients = clients
        self._build = build
        self.own = build(clients)
        self._views = {clients[0].tenant: self.own}
        self._making = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        async with self._stack:
            await self._stack.enter_async_context(self.own.running())
            yield

    def count_streams(self) -> int:
        return sum(view.streams.count_open() for view in self._views.values())

    async def of(self, caller: access.Caller | None, wanted: str | None) -> TenantView:
        """`wanted`: the tenant that the request names. Raises ProblemError."""
        if caller is None:
            return self.own
        tenant = caller.tenant if caller.tenant is not None else self._clients[0].tenant
        if wanted is not None and wanted != tenant:
            if caller.role is not Role.ADMIN:
                raise ProblemError(403, f"{HEADER}: {access.missing_role(caller, Role.ADMIN)}")
            if not ids.is_name(wanted):
                raise ProblemError(400, f"{HEADER}: expected the name of a tenant")
            tenant = TenantId(wanted)
        if tenant in self._views:
            return self._views[tenant]
        identity = self._clients[0].identity.who
        if identity.role is not Role.ADMIN:
            raise ProblemError(
                403,
                f"this server serves the tenant {identity.tenant}, not {tenant}: to serve several, give it an identity "
                "with the role admin",
            )
        async with self._making:
            return self._views.get(tenant) or await self._make(tenant)

    async def _make(self, tenant: TenantId) -> TenantView:
        if len(self._views) >= MAX_TENANTS:
            raise ProblemError(503, f"this server serves {MAX_TENANTS} tenants already; start another one")
        clients = [client.in_tenant(tenant) for client in self._clients]
        answers = await fanout.call_each(clients, lambda client: client.call("ListGroups"))
        unknown = [error for _, error in answers.failures if isinstance(error, ShardError)]
        if unknown and not answers.results and all(error.code is Status.NOT_FOUND for error in unknown):
            raise ProblemError(404, f"there is no tenant {tenant}")
        view = self._build(clients)
        await self._stack.enter_async_context(view.running())
        self._views[tenant] = view
        return view
