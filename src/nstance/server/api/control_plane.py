"""How the control plane of a shard is doing: its leader and standbys, the numbers of the leader's process, and alarms."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata

from nstance.clock import Clock
from nstance.model.ids import ServerId
from nstance.server.state.alarms import AlarmKind
from nstance.telemetry.metrics import Metrics
from nstance.v1 import operator_pb2

# None of them has a tenant as a label: every operator may see them.
SHOWN_METRICS = frozenset(
    {
        "nstance_storage_requests_total",
        "nstance_provider_requests_total",
        "nstance_decisions_total",
        "nstance_certificates_issued_total",
        "nstance_certificate_expiry_timestamp_seconds",
        "nstance_event_loop_lag_seconds",
        "nstance_event_loop_errors_total",
        "nstance_agents_connected",
        "nstance_cache_dropped_total",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneSources:
    """`standbys`: how many seconds ago each one answered. `provider_rate`: calls per second, 0 if not limited.
    `storage_failed_at`: when a request failed last, by wall time; 0 if none did."""

    metrics: Metrics
    standbys: Callable[[], Mapping[str, float]]
    provider_rate: Callable[[], float]
    alarms: Callable[[], Mapping[AlarmKind, str]]
    storage_failed_at: Callable[[], float]


class ControlPlaneStatus:
    """Of one term; made when it begins."""

    def __init__(self, server: ServerId, epoch: int, sources: ControlPlaneSources, clock: Clock) -> None:
        self._server = server
        self._epoch = epoch
        self._sources = sources
        self._clock = clock
        self._began = clock.monotonic()

    def status(self) -> operator_pb2.ControlPlane:
        samples = self._sources.metrics.samples(SHOWN_METRICS)
        return operator_pb2.ControlPlane(
            leader=self._server,
            epoch=self._epoch,
            leading_ms=_milliseconds(self._clock.monotonic() - self._began),
            standbys=[
                operator_pb2.Standby(server=server, answered_ms=_milliseconds(seconds))
                for server, seconds in sorted(self._sources.standbys().items())
            ],
            metrics=[
                operator_pb2.MetricSample(name=name, labels=labels, value=value) for name, labels, value in samples
            ],
            provider_rate=self._sources.provider_rate(),
            time_unix_ms=_milliseconds(self._clock.wall()),
            version=_version(),
            alarms=[
                operator_pb2.Alarm(kind=kind.value, message=message) for kind, message in self._sources.alarms().items()
            ],
            storage_failed_unix_ms=_milliseconds(self._sources.storage_failed_at()),
        )


@functools.cache
def _version() -> str:
    return metadata.version("nstance")


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
