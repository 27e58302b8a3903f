"""What every program says about itself: its version, its processor time, memory and open files, and its traces."""

import platform
from collections.abc import Callable, Iterator, Mapping

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

# Otherwise the library adds a gauge with the creation time to each counter and histogram.
prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]


def add_process(registry: prometheus.CollectorRegistry, *, program: str, version: str) -> None:
    info = prometheus.Gauge(
        "nstance_build_info", "Always 1; the labels say what runs.", ["program", "version", "python"], registry=registry
    )
    info.labels(program, version, platform.python_version()).set(1)
    prometheus.ProcessCollector(registry=registry)


def no_spans() -> Mapping[str, int]:
    return {"sent": 0, "dropped": 0}


class SpanCollector(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        spans = CounterMetricFamily("nstance_trace_spans", "Spans of traces by result.", labels=["result"])
        for result, count in self._counts().items():
            spans.add_metric([result], count)
        yield spans
