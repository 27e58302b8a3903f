"""What every program says about itself: its version, and its processor time, memory and open files."""

import platform

import prometheus_client as prometheus

# Otherwise the library adds a gauge with the creation time to each counter and histogram.
prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]


def add_process(registry: prometheus.CollectorRegistry, *, program: str, version: str) -> None:
    info = prometheus.Gauge(
        "nstance_build_info", "Always 1; the labels say what runs.", ["program", "version", "python"], registry=registry
    )
    info.labels(program, version, platform.python_version()).set(1)
    prometheus.ProcessCollector(registry=registry)
