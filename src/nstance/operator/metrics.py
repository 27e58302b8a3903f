"""The operator's Prometheus metrics.

Label values are configured shards, names of controllers, or from closed sets, so their number is bounded.
"""

from collections.abc import Callable, Mapping
from importlib import metadata

import prometheus_client as prometheus

from nstance.telemetry import process_metrics
from nstance.telemetry.metrics import CONTENT_TYPE as CONTENT_TYPE

_CALL_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DRAIN_BUCKETS = (0.1, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    def __init__(self, spans: Callable[[], Mapping[str, int]] = process_metrics.no_spans) -> None:
        """`spans`: of traces, by result."""
        self._registry = registry = prometheus.CollectorRegistry(auto_describe=False)
        process_metrics.add_process(registry, program="nstance-operator", version=metadata.version("nstance"))
        registry.register(process_metrics.SpanCollector(spans))

        def gauge(name: str, help: str, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(f"nstance_operator_{name}", help, labels, registry=registry)

        def counter(name: str, help: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"nstance_operator_{name}", help, labels, registry=registry)

        def histogram(name: str, help: str, *labels: str, buckets: tuple[float, ...]) -> prometheus.Histogram:
            return prometheus.Histogram(f"nstance_operator_{name}", help, labels, buckets=buckets, registry=registry)

        self._connected = gauge("shard_connected", "1 while the shard's watch is open.", "shard")
        self._calls = counter("shard_calls", "Calls to a shard.", "shard", "call", "code")
        self._call_seconds = histogram(
            "shard_call_seconds", "Duration of a call to a shard.", "shard", buckets=_CALL_BUCKETS
        )
        self._requests = counter("kubernetes_requests", "Requests to Kubernetes.", "method", "code")
        self._reconciles = counter("reconciles", "Reconciles of a controller.", "controller", "result")
        self._reconcile_seconds = histogram(
            "reconcile_seconds", "Duration of a reconcile.", "controller", buckets=_CALL_BUCKETS
        )
        self._drains = counter("drains", "Drains that ended.", "result")
        self._draining = gauge("draining", "Nodes that are being drained.")
        self._drain_seconds = histogram(
            "drain_seconds", "From the start of a drain to its end.", buckets=_DRAIN_BUCKETS
        )
        self._expires = gauge("certificate_expiry_timestamp_seconds", "When the client certificate expires.")
        self._loop_errors = counter("event_loop_errors", "Errors of callbacks and tasks that nothing awaits.")
        self._leader = gauge("leader", "1 while this replica leads.")

    def render(self) -> bytes:
        return prometheus.generate_latest(self._registry)

    def shard_connected(self, shard: str, connected: bool) -> None:
        self._connected.labels(shard).set(connected)

    def shard_removed(self, shard: str) -> None:
        self._connected.remove(shard)

    def shard_called(self, shard: str, call: str, code: str, seconds: float) -> None:
        """`call` and `code` are gRPC's names; UNREACHABLE means no answer."""
        self._calls.labels(shard, call, code).inc()
        self._call_seconds.labels(shard).observe(seconds)

    def kubernetes_called(self, method: str, code: str) -> None:
        """`method` is WATCH or one of HTTP; UNREACHABLE as a code means no answer."""
        self._requests.labels(method, code).inc()

    def reconciled(self, controller: str, result: str, seconds: float) -> None:
        self._reconciles.labels(controller, result).inc()
        self._reconcile_seconds.labels(controller).observe(seconds)

    def set_draining(self, count: int) -> None:
        self._draining.set(count)

    def drained(self, result: str, seconds: float) -> None:
        """`result`: drained, deadline, cancelled or gone."""
        self._drains.labels(result).inc()
        self._drain_seconds.observe(seconds)

    def set_certificate_expiry(self, at: float) -> None:
        self._expires.set(at)

    def loop_failed(self) -> None:
        self._loop_errors.inc()

    def set_leader(self, leading: bool) -> None:
        self._leader.set(leading)
