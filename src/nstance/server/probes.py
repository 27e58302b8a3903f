"""Health and metrics for load balancers, supervisors and Prometheus, over plain HTTP.

Health is determined with each request and never remembered.
"""

from collections.abc import Callable

from aiohttp import web

from nstance.telemetry import metrics as telemetry
from nstance.wire import http_listener


class Probes:
    def __init__(
        self,
        *,
        health_problem: Callable[[], str | None],
        waits_for: Callable[[], str] = lambda: "",
        metrics: telemetry.Metrics,
        limits: http_listener.Limits = http_listener.LIMITS,
    ) -> None:
        """`health_problem`: why this server is not healthy, or None if it is. `waits_for`: what a healthy one waits for,
        or nothing. Neither may block."""
        self._health_problem = health_problem
        self._waits_for = waits_for
        self._metrics = metrics
        self.listener = http_listener.HttpListener(self._answer, limits=limits)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in ("/", "/health", "/metrics"):
            return http_listener.not_found()
        if request.method not in ("GET", "HEAD"):
            return http_listener.not_allowed("GET", "HEAD")
        if request.path == "/metrics":
            return web.Response(body=self._metrics.render(), headers={"Content-Type": telemetry.CONTENT_TYPE})
        reason = self._health_problem()
        if reason is not None:
            return web.Response(status=503, text=reason)
        return web.Response(text=self._waits_for() or "ok")
