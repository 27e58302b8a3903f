"""The Prometheus metrics of a server.

One `Metrics` per server with its own registry, so that several servers can run in one process. Label values come from
closed sets or validated group keys; others become `other`, so that a client cannot create series. What belongs to the
leader is read at each scrape and is zero elsewhere.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from importlib import metadata

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey
from nstance.telemetry import process_metrics
from nstance.telemetry.group_metrics import GroupCollector
from nstance.telemetry.group_metrics import GroupCount as GroupCount

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OTHER = "other"
MAX_GROUPS = 1000  # with their own series; durations of more groups are counted under `other`

STORAGE_OPS = frozenset({"get", "head", "create", "replace", "delete", "list"})
STORAGE_CODES = frozenset(
    {"ok", "not_found", "conflict", "unavailable", "permission_denied", "too_large", "unknown_outcome", "cancelled"}
)
PROVIDER_OPS = frozenset(
    {"create", "delete", "get", "list", "console", "subnet_capacity", "find_image"}
    | {"assign_leader_network", "release_leader_network"}
    | {"load_balancer_members", "load_balancer_register", "load_balancer_deregister"}
)
PROVIDER_CODES = frozenset(
    {"ok", "not_found", "no_capacity", "throttled", "permanent", "permission_denied"}
    | {"unavailable", "unknown_outcome", "unknown"}
)

_REACTION = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CALL = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BOOT = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_DRAIN = (0.1, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCount:
    """The server's own cache as it is now."""

    on_disk: bool
    dropped: int  # since the process started


def _zero() -> float:
    return 0.0


class Metrics:
    def __init__(self) -> None:
        self._registry = registry = prometheus.CollectorRegistry(auto_describe=False)
        self._groups: Callable[[], Iterable[GroupCount]] = tuple
        self._known: set[GroupKey] = set()
        self._cache: Callable[[], CacheCount] | None = None
        registry.register(GroupCollector(lambda: self._groups()))
        self._spans: Callable[[], Mapping[str, int]] = process_metrics.no_spans
        registry.register(process_metrics.SpanCollector(lambda: self._spans()))
        registry.register(_CacheCollector(lambda: self._cache and self._cache()))

        def gauge(name: str, about: str, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(name, about, labels, registry=registry)

        def counter(name: str, about: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(name, about, labels, registry=registry)

        def per_group(name: str, about: str, buckets: tuple[float, ...]) -> Callable[[GroupKey, float], None]:
            histogram = prometheus.Histogram(name, about, ["tenant", "group"], buckets=buckets, registry=registry)
            return functools.partial(self._observe, histogram)

        # Called with a group and seconds.
        self.replaced = per_group(
            "nstance_replacement_seconds", "From a signal to the create call of a replacement.", _REACTION
        )
        self.created = per_group("nstance_create_seconds", "Of a create call to the provider.", _CALL)
        self.registered = per_group("nstance_register_seconds", "From create to registered agent.", _BOOT)
        self.drained = per_group("nstance_drain_seconds", "From the start of a drain to its end.", _DRAIN)
        self._leader = gauge("nstance_leader", "1 if this server is the leader of its shard.")
        self._epoch = gauge("nstance_leader_epoch", "Newest epoch this server led in.")
        self._storage = counter("nstance_storage_requests", "Calls to object storage.", "op", "code")
        self._provider = counter("nstance_provider_requests", "Calls to the provider.", "op", "code")
        self.certificate_issued = counter("nstance_certificates_issued", "Certificates issued.").inc
        self._expiry = gauge(
            "nstance_certificate_expiry_timestamp_seconds",
            "When it expires: this server's certificate, and the newest CA.",
            "kind",
        )
        self.agents_connected = gauge("nstance_agents_connected", "Agents with a live session.").set
        self.loop_lag = gauge("nstance_event_loop_lag_seconds", "Worst delay of the event loop in the last minute.").set
        self._unknown = gauge("nstance_unknown_vms", "VMs with this shard's tags and without a record.")
        self._held = gauge("nstance_held_groups", "Groups that the API set and groups.jsonc does not have.")
        self._exhausted = gauge(
            "nstance_exhausted_offers", "Offers, markets, types, subnets and quotas that are known to have no capacity."
        )
        self.loop_failed = counter(
            "nstance_event_loop_errors", "Errors of callbacks and tasks that nothing awaits."
        ).inc
        self._config_refused = gauge(
            "nstance_config_refused", "1 if a newer configuration was refused and the old one stays active."
        )
        self._config_unreadable = gauge(
            "nstance_config_unreadable", "1 if the configuration could not be read the last time."
        )
        self._standbys = gauge("nstance_standbys", "Standbys that answered this leader within the last five seconds.")
        self._file_sets = counter("nstance_file_sets", "Attempts to make a file set for an instance.", "result")
        for result in ("made", "failed"):
            self._file_sets.labels(result)
        self._decisions = counter("nstance_decisions", "Decisions taken.", "reason")

    def render(self) -> bytes:
        """The body of `/metrics`, of type CONTENT_TYPE."""
        return prometheus.generate_latest(self._registry)

    def samples(self, names: Set[str]) -> list[tuple[str, Mapping[str, str], float]]:
        """The current samples with these names: name, labels and value."""
        return [
            (sample.name, sample.labels, sample.value)
            for family in self._registry.collect()
            for sample in family.samples
            if sample.name in names
        ]

    def count_groups(self, source: Callable[[], Iterable[GroupCount]]) -> None:
        """Call `source` at each scrape. It runs in the event loop's thread and must not block."""
        self._groups = source

    def count_cache(self, source: Callable[[], CacheCount] | None) -> None:
        """As above; None: there is no cache."""
        self._cache = source

    def count_held(self, *, unknown_vms: Callable[[], float] = _zero, groups: Callable[[], float] = _zero) -> None:
        """As above. A server that does not lead has no sources."""
        self._unknown.set_function(unknown_vms)
        self._held.set_function(groups)

    def count_exhausted_offers(self, source: Callable[[], float] = _zero) -> None:
        """As above."""
        self._exhausted.set_function(source)

    def count_config(self, *, refused: Callable[[], float], unreadable: Callable[[], float]) -> None:
        """As above, on every server."""
        self._config_refused.set_function(refused)
        self._config_unreadable.set_function(unreadable)

    def count_standbys(self, source: Callable[[], float]) -> None:
        """As above, on every server."""
        self._standbys.set_function(source)

    def count_spans(self, source: Callable[[], Mapping[str, int]]) -> None:
        """As above: spans by result."""
        self._spans = source

    def add_process(self) -> None:
        """Version, processor time, memory and open files of this process."""
        process_metrics.add_process(self._registry, program="nstance-server", version=metadata.version("nstance"))

    def file_set_made(self, succeeded: bool) -> None:
        self._file_sets.labels("made" if succeeded else "failed").inc()

    def leads(self, epoch: int) -> None:
        self._leader.set(1)
        self._epoch.set(epoch)

    def stands_by(self) -> None:
        self._leader.set(0)

    def storage_request(self, op: str, code: str) -> None:
        self._storage.labels(_among(op, STORAGE_OPS), _among(code, STORAGE_CODES)).inc()

    def provider_request(self, op: str, code: str) -> None:
        self._provider.labels(_among(op, PROVIDER_OPS), _among(code, PROVIDER_CODES)).inc()

    def certificates_expire(self, *, server: float, ca: float) -> None:
        """In seconds since 1970."""
        self._expiry.labels("server").set(server)
        self._expiry.labels("ca").set(ca)

    def decided(self, reason: ReasonCode) -> None:
        self._decisions.labels(reason.value).inc()

    def _observe(self, histogram: prometheus.Histogram, group: GroupKey, seconds: float) -> None:
        if group not in self._known:
            if len(self._known) >= MAX_GROUPS:
                histogram.labels(OTHER, OTHER).observe(seconds)
                return
            self._known.add(group)
        histogram.labels(group.tenant, group.name).observe(seconds)


class _CacheCollector(Collector):
    def __init__(self, cache: Callable[[], CacheCount | None]) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        on_disk = GaugeMetricFamily("nstance_cache_on_disk", "1 if the cache survives the process.")
        dropped = CounterMetricFamily("nstance_cache_dropped", "Updates and events that the cache could not store.")
        if (now := self._cache()) is not None:
            on_disk.add_metric([], now.on_disk)
            dropped.add_metric([], now.dropped)
        yield on_disk
        yield dropped


def _among(value: str, allowed: frozenset[str]) -> str:
    return value if value in allowed else OTHER
