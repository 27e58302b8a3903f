"""Probes and metrics over plain HTTP.

`/healthz` says that the event loop runs; `/readyz` that the operator works, or waits for the lease. A replica that waits
must count as ready, or a rolling update would wait for it forever.
"""

from collections.abc import Callable

from aiohttp import web

from nstance.operator.errors import FatalError
from nstance.operator.metrics import CONTENT_TYPE, Metrics
from nstance.operator.options import BindAddress
from nstance.wire import http_listener


class ProbeServer:
    def __init__(self, unready_reason: Callable[[], str | None]) -> None:
        self._unready_reason = unready_reason
        self.listener = http_listener.HttpListener(self._answer)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if (rejection := _reject(request, "/healthz", "/readyz")) is not None:
            return rejection
        reason = self._unready_reason() if request.path == "/readyz" else None
        return web.Response(text="ok") if reason is None else web.Response(status=503, text=reason)


class MetricsServer:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.listener = http_listener.HttpListener(self._answer)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if (rejection := _reject(request, "/metrics")) is not None:
            return rejection
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _reject(request: web.BaseRequest, *paths: str) -> web.StreamResponse | None:
    if request.path not in paths:
        return http_listener.not_found()
    return None if request.method in ("GET", "HEAD") else http_listener.not_allowed("GET", "HEAD")


async def start_listener(listener: http_listener.HttpListener, bind: BindAddress, *, flag: str) -> None:
    """Raises FatalError if the address is not available."""
    try:
        await listener.start(bind.host, bind.port)
    except OSError as problem:
        raise FatalError(f"{flag}: {bind} cannot be opened: {problem.strerror or problem}") from problem
