"""Whether this program exports traces: only if OTEL_EXPORTER_OTLP_ENDPOINT is set. Otherwise nothing is loaded."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nstance.clock import Clock, Rng

if TYPE_CHECKING:
    from nstance.telemetry.otlp import Exporter
    from nstance.telemetry.traces import Tracer

FLUSH_SECONDS = 1.0
VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Tracing:
    """Of one process."""

    def __init__(self, tracer: "Tracer | None" = None, exporter: "Exporter | None" = None) -> None:
        self.tracer = tracer
        self._exporter = exporter

    def counts(self) -> Mapping[str, int]:
        """Spans by result, for metrics."""
        return self._exporter.counts() if self._exporter is not None else {"sent": 0, "dropped": 0}

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Send what waits, but for at most so long."""
        if self._exporter is not None:
            self._exporter.close(seconds)


def start(
    environment: Mapping[str, str], clock: Clock, rng: Rng, *, program: str, version: str, instance: str
) -> Tracing:
    if not any(environment.get(name, "").strip() for name in VARIABLES):
        return Tracing()
    from nstance.telemetry import otlp, traces

    exporter = otlp.from_environment(environment, program=program, version=version, instance=instance)
    return Tracing(traces.Tracer(exporter.export, clock, rng), exporter) if exporter is not None else Tracing()
