"""The Prometheus metrics of `nstance-admin serve`."""

from collections.abc import Callable, Iterator
from importlib import metadata

import prometheus_client as prometheus
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nstance.admin.http.access import Handler
from nstance.admin.http.fleet import Fleet
from nstance.telemetry import process_metrics
from nstance.telemetry.metrics import CONTENT_TYPE

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
CLIENT_GONE = "499"


class ServeMetrics:
    def __init__(self, fleet: Fleet, open_streams: Callable[[], int]) -> None:
        self._registry = registry = prometheus.CollectorRegistry(auto_describe=False)
        process_metrics.add_process(registry, program="nstance-admin", version=metadata.version("nstance"))
        self._requests = prometheus.Counter(
            "nstance_admin_http_requests", "Requests by method and status.", ["method", "code"], registry=registry
        )
        streams = prometheus.Gauge("nstance_admin_streams", "Streams of events that are open.", registry=registry)
        streams.set_function(open_streams)
        registry.register(_ShardCollector(fleet))

    def middleware(self) -> Middleware:
        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            code = CLIENT_GONE
            try:
                response = await handler(request)
                code = str(response.status)
                return response
            except web.HTTPException as answer:
                code = str(answer.status)
                raise
            finally:
                method = request.method if request.method in METHODS else "other"
                self._requests.labels(method, code).inc()

        return count

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(body=prometheus.generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE})


class _ShardCollector(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        reachable = GaugeMetricFamily("nstance_admin_shard_reachable", "1 if the shard answers.", labels=["shard"])
        for shard, feed in self._fleet.feeds.items():
            reachable.add_metric([shard], bool(feed.record()["reachable"]))
        yield reachable
