"""Health and metrics for load balancers, supervisors and Prometheus: plain HTTP, and nothing else (B33).

Whether the server is well is asked when somebody asks, never remembered.
"""

from collections.abc import Callable

from aiohttp import web

from nstance.telemetry import metrics as telemetry
from nstance.wire import http_listener


class Probes:
    def __init__(
        self,
        *,
        unwell: Callable[[], str | None],
        metrics: telemetry.Metrics,
        request_seconds: float = http_listener.REQUEST_SECONDS,
    ) -> None:
        """`unwell`: why this server is not well, or None if it is. Neither may wait."""
        self._unwell = unwell
        self._metrics = metrics
        self._door = http_listener.HttpListener(self._answer, request_seconds=request_seconds)

    @property
    def port(self) -> int:
        return self._door.port

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError if the address cannot be had."""
        await self._door.start(host, port)

    async def close(self) -> None:
        await self._door.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in ("/", "/health", "/metrics"):
            return http_listener.not_found()
        if request.method not in ("GET", "HEAD"):
            return http_listener.not_allowed("GET", "HEAD")
        if request.path == "/metrics":
            return web.Response(body=self._metrics.render(), headers={"Content-Type": telemetry.CONTENT_TYPE})
        reason = self._unwell()
        return web.Response(text="ok") if reason is None else web.Response(status=503, text=reason)
