"""What Prometheus may read of the operator.

Label values are shards of the configuration, names of our own controllers, or from closed sets.
"""

import prometheus_client as prometheus

from nstance.telemetry.metrics import CONTENT_TYPE as CONTENT_TYPE

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DRAIN = (0.1, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = prometheus.CollectorRegistry(auto_describe=False)

        def gauge(name: str, about: str, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(f"nstance_operator_{name}", about, labels, registry=registry)

        def counter(name: str, about: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"nstance_operator_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, *labels: str, buckets: tuple[float, ...]) -> prometheus.Histogram:
            return prometheus.Histogram(f"nstance_operator_{name}", about, labels, buckets=buckets, registry=registry)

        self._connected = gauge("shard_connected", "1 while a shard's watch is followed.", "shard")
        self._calls = counter("shard_calls", "Calls to a shard.", "shard", "call", "code")
        self._call_seconds = histogram("shard_call_seconds", "Of a call to a shard.", "shard", buckets=_SECONDS)
        self._reconciles = counter("reconciles", "Runs of a controller.", "controller", "result")
        self._reconcile_seconds = histogram(
            "reconcile_seconds", "Of a controller's run.", "controller", buckets=_SECONDS
        )
        self._drains = counter("drains", "Drains that ended.", "result")
        self._draining = gauge("draining", "Nodes that are being drained.")
        self._drain_seconds = histogram("drain_seconds", "From the start of a drain to its end.", buckets=_DRAIN)
        self._expires = gauge("certificate_expiry_seconds", "When the client certificate ends, in seconds since 1970.")
        self._leader = gauge("leader", "1 while this process may act.")

    def render(self) -> bytes:
        return prometheus.generate_latest(self._registry)

    def shard_connected(self, shard: str, connected: bool) -> None:
        self._connected.labels(shard).set(connected)

    def shard_removed(self, shard: str) -> None:
        self._connected.remove(shard)

    def shard_called(self, shard: str, call: str, code: str, seconds: float) -> None:
        """`call` and `code` are gRPC's names; UNREACHABLE: there was no answer."""
        self._calls.labels(shard, call, code).inc()
        self._call_seconds.labels(shard).observe(seconds)

    def reconciled(self, controller: str, result: str, seconds: float) -> None:
        self._reconciles.labels(controller, result).inc()
        self._reconcile_seconds.labels(controller).observe(seconds)

    def draining(self, count: int) -> None:
        self._draining.set(count)

    def drained(self, result: str, seconds: float) -> None:
        """`result`: drained, deadline, cancelled or gone."""
        self._drains.labels(result).inc()
        self._drain_seconds.observe(seconds)

    def certificate_expires(self, at: float) -> None:
        self._expires.set(at)

    def leads(self, leading: bool) -> None:
        self._leader.set(leading)
