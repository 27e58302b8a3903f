"""Probes and metrics: plain HTTP, and nothing else.

`/healthz` says that the process turns; `/readyz` that it can do its work, or waits its turn for the lease. A replica that
waits must count as ready, or a rolling update would wait for it for ever.
"""

from collections.abc import Callable

from aiohttp import web

from nstance.operator.errors import FatalError
from nstance.operator.metrics import CONTENT_TYPE, Metrics
from nstance.operator.options import BindAddress
from nstance.wire import http_listener


class ProbeServer:
    def __init__(self, unready: Callable[[], str | None]) -> None:
        """`unready`: why, or None; must not wait."""
        self._unready = unready
        self.door = http_listener.HttpListener(self._answer)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in ("/healthz", "/readyz"):
            return http_listener.not_found()
        if request.method not in ("GET", "HEAD"):
            return http_listener.not_allowed("GET", "HEAD")
        reason = self._unready() if request.path == "/readyz" else None
        return web.Response(text="ok") if reason is None else web.Response(status=503, text=reason)


class MetricsServer:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.door = http_listener.HttpListener(self._answer)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/metrics":
            return http_listener.not_found()
        if request.method not in ("GET", "HEAD"):
            return http_listener.not_allowed("GET", "HEAD")
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


async def start_listener(opened: http_listener.HttpListener, bind: BindAddress, *, flag: str) -> None:
    """Raises Fatal if the address cannot be had."""
    try:
        await opened.start(bind.host, bind.port)
    except OSError as problem:
        raise FatalError(f"{flag}: {bind} cannot be opened: {problem.strerror or problem}") from problem
