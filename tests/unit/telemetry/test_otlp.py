"""Spans reach a collector, and a collector that is slow, dead or hostile costs nothing."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from nstance.clock import SystemClock, SystemRng
from nstance.tasks.backoff import Backoff
from nstance.telemetry import otlp, trace_ids, tracing
from nstance.telemetry.otlp import Batching, Exporter, RejectedError
from nstance.telemetry.trace_ids import SpanContext
from nstance.telemetry.traces import Span, SpanKind, SpanPlan, Tracer
from support.eventually import wait_for
from support.otlp_receiver import read, receiving

SPAN = Span(
    context=SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),
    parent="00f067aa0ba902b7",
    name="create",
    kind=SpanKind.CLIENT,
    start=1.5,
    end=2.25,
    attributes={"nstance.instance.id": 'wrk-"quoted" ü'},
    error="no capacity",
)


AT_ONCE = Batching(linger_seconds=0.0, retry=Backoff(0.001, 0.002))


def started(post: Callable[[bytes], None], batching: Batching = AT_ONCE) -> Exporter:
    return Exporter(post, {"service.name": "nstance-server"}, batching)


def test_a_span_is_read_by_the_definitions_of_opentelemetry() -> None:
    bodies: list[bytes] = []
    exporter = started(bodies.append)
    exporter.export(SPAN)
    exporter.close(60)
    [[span]] = [read(body) for body in bodies]
    assert (span.program, span.trace_id, span.span_id, span.parent) == (
        "nstance-server",
        SPAN.context.trace_id,
        SPAN.context.span_id,
        SPAN.parent,
    )
    assert (span.start, span.end) == (1_500_000_000, 2_250_000_000)
    assert span.attributes == SPAN.attributes
    assert span.error == "no capacity"
    assert exporter.counts() == {"sent": 1, "dropped": 0}


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    is_posting, may_answer = threading.Event(), threading.Event()
    sizes: list[int] = []

    def post(body: bytes) -> None:
        sizes.append(len(read(body)))
        is_posting.set()
        assert may_answer.wait(60)

    exporter = started(post, replace(AT_ONCE, max_queue=10, max_batch=4))
    exporter.export(SPAN)
    assert is_posting.wait(60)
    for _ in range(100):
        exporter.export(SPAN)
    assert exporter.counts() == {"sent": 0, "dropped": 90}
    may_answer.set()
    wait_for("the rest is sent", lambda: exporter.counts()["sent"] == 11)
    assert sizes == [1, 4, 4, 2]
    exporter.close(60)


def test_a_dead_collector_is_tried_again_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    failures = 5
    attempts = 0

    def post(body: bytes) -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= failures:
            raise OSError("connection refused")

    exporter = started(post)
    exporter.export(SPAN)
    wait_for("it is sent", lambda: exporter.counts() == {"sent": 1, "dropped": 0})
    assert attempts == failures + 1
    assert [record.getMessage() for record in caplog.records] == ["failed to send traces, will retry"]
    exporter.close(60)


def test_a_rejected_batch_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    def post(body: bytes) -> None:
        raise RejectedError("status 400")

    exporter = started(post)
    exporter.export(SPAN)
    wait_for("it is dropped", lambda: exporter.counts() == {"sent": 0, "dropped": 1})
    exporter.close(60)


def test_the_end_of_a_program_does_not_wait_for_a_dead_collector() -> None:
    may_end = threading.Event()

    def post(body: bytes) -> None:
        may_end.wait(60)
        raise OSError

    exporter = started(post)
    exporter.export(SPAN)
    exporter.close(0.01)  # returns although the thread is stuck
    assert exporter.counts()["sent"] == 0
    may_end.set()


async def test_over_http_with_headers_and_a_collector_that_is_busy_first() -> None:
    async with receiving() as receiver:
        receiver.statuses = [503, 429]
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url + "/",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc,x-scope=a",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
        }
        exporter = otlp.from_environment(
            environment, program="nstance-agent", version="1", instance="i", batching=AT_ONCE
        )
        assert exporter is not None
        exporter.export(SPAN)
        await asyncio.to_thread(wait_for, "it is sent", lambda: exporter.counts()["sent"] == 1)
        assert receiver.headers["Authorization"] == "Bearer abc"
        assert receiver.headers["X-Scope"] == "a"
        assert [span.program for span in receiver.spans] == ["nstance-agent"]
        receiver.statuses = [400]
        exporter.export(SPAN)
        await asyncio.to_thread(wait_for, "it is dropped", lambda: exporter.counts()["dropped"] == 1)
        await asyncio.to_thread(exporter.close, 60)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/base/"}, "https://c/base/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/own"}, "http://c/own"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "file:///etc/passwd"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, None),
    ],
)
def test_where_traces_go(environment: dict[str, str], url: str | None) -> None:
    endpoint = otlp.read_endpoint(environment)
    assert (endpoint.url if endpoint is not None else None) == url


def test_the_protocol_is_named_if_another_one_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with caplog.at_level(logging.WARNING):
        assert otlp.read_endpoint(environment) is not None
    assert "http/json" in caplog.text


def test_nothing_is_loaded_without_an_endpoint() -> None:
    programs = "nstance.server.main, nstance.agent.lifecycle, nstance.operator.main"
    code = (
        f"import sys, os, {programs}; from nstance.telemetry import tracing; from nstance.clock import *;"
        "made = tracing.start({}, SystemClock(), SystemRng(), program='p', version='1', instance='i');"
        "assert made.tracer is None; made.close();"
        "print([name for name in sys.modules if name.startswith('opentelemetry') or name == 'nstance.telemetry.otlp'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[]\n"


def test_disabled_means_off() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}
    made = tracing.start(environment, SystemClock(), SystemRng(), program="p", version="1", instance="i")
    assert made.tracer is None


def test_spans_have_wall_times_and_random_ids() -> None:
    spans: list[Span] = []
    clock = SystemClock()
    tracer = Tracer(spans.append, clock, SystemRng())
    now, wall = clock.monotonic(), clock.wall()
    for _ in range(2):
        tracer.record(SpanPlan(name="x", trace_id="ab" * 16), started=now - 10, ended=now - 4)
    one, two = spans
    assert one.context.span_id != two.context.span_id
    assert one.end - one.start == pytest.approx(6, abs=1e-3)
    assert one.start == pytest.approx(wall - 10, abs=60)


@pytest.mark.parametrize(
    "text",
    ["", "x", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "01-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-" + "g" * 32],
)
def test_a_traceparent_that_is_none_is_ignored(text: str) -> None:
    assert trace_ids.parse(text) is None


def test_a_traceparent_comes_back() -> None:
    assert trace_ids.parse(SPAN.context.traceparent) == SPAN.context
