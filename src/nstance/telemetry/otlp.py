"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, as JSON.

Spans wait in a bounded queue for a thread, so that the event loop never waits for a collector. What does not fit is
dropped and counted. `from_environment` returns None unless an endpoint is set; this module is imported only then.
"""

import itertools
import json
import logging
import ssl
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from nstance.tasks.backoff import Backoff
from nstance.telemetry.traces import Span

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
RETRYABLE = frozenset({429, 502, 503, 504})


class RejectedError(Exception):
    """The collector will not take this batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    url: str
    headers: Mapping[str, str]
    timeout: float
    tls: ssl.SSLContext | None

    def post(self, body: bytes) -> None:
        """Raises OSError where it may be tried again, and RejectedError."""
        headers = {"Content-Type": "application/json", **self.headers}
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout, context=self.tls) as answer:
                answer.read(4096)
        except urllib.error.HTTPError as answer:
            with answer:
                if answer.code not in RETRYABLE:
                    raise RejectedError(f"status {answer.code}") from None
            raise
        except ValueError as problem:  # not HTTP
            raise RejectedError(str(problem)) from problem


RETRY = Backoff(1.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    max_queue: int = 4096  # spans
    max_batch: int = 256
    linger_seconds: float = 0.5  # for more spans to share a request
    retry: Backoff = RETRY


BATCHING = Batching()


class Exporter:
    def __init__(
        self, post: Callable[[bytes], None], resource: Mapping[str, str], batching: Batching = BATCHING
    ) -> None:
        """`post` blocks. Raises OSError where it may be tried again, and RejectedError."""
        self._batching = batching
        self._sent = self._overflowed = self._failed = 0  # the second one belongs to the caller's thread
        self._post = post
        self._resource = [_attribute(key, value) for key, value in resource.items()]
        self._queue: deque[Span] = deque()
        self._filled, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def export(self, span: Span) -> None:
        if len(self._queue) >= self._batching.max_queue:
            self._overflowed += 1
            return
        self._queue.append(span)
        self._filled.set()

    def counts(self) -> Mapping[str, int]:
        return {"sent": self._sent, "dropped": self._overflowed + self._failed}

    def close(self, seconds: float) -> None:
        """Send what waits, but do not wait long: a collector must not delay the end of a program."""
        self._closing.set()
        self._filled.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            self._filled.wait()
            self._filled.clear()
            self._closing.wait(self._batching.linger_seconds)
            while self._queue:
                size = min(len(self._queue), self._batching.max_batch)
                self._send([self._queue.popleft() for _ in range(size)])
            if self._closing.is_set():
                return

    def _send(self, batch: list[Span]) -> None:
        body = json.dumps(encode(batch, self._resource)).encode()
        for failures in itertools.count(1):
            try:
                self._post(body)
                self._sent += len(batch)
                return
            except OSError as problem:
                if failures == 1:
                    log.warning("failed to send traces, will retry", extra={"error": str(problem)})
                if self._closing.wait(self._batching.retry.delay(failures)):
                    break
            except RejectedError as problem:
                log.warning("failed to send traces: the collector rejected them", extra={"error": str(problem)})
                break
        self._failed += len(batch)


def from_environment(
    environment: Mapping[str, str], *, program: str, version: str, instance: str, batching: Batching = BATCHING
) -> Exporter | None:
    """`instance`: this server, instance or replica, as `service.instance.id`."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoint = read_endpoint(environment)
    if endpoint is None:
        return None
    resource = {
        "service.name": environment.get("OTEL_SERVICE_NAME", "").strip() or program,
        "service.version": version,
        "service.instance.id": instance,
        **_pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    }
    return Exporter(endpoint.post, resource, batching)


def read_endpoint(environment: Mapping[str, str]) -> Endpoint | None:
    """None: no endpoint is set, or it is not usable, which is logged: traces must not keep a program from starting."""

    def read(name: str) -> str:
        own = environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}", "").strip()
        return own or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()

    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    url = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip() or (
        base and f"{base.rstrip('/')}/v1/traces"
    )
    if not url:
        return None
    try:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"expected an http or https URL, found {url[:200]!r}")
        if (protocol := read("PROTOCOL")) not in ("", "http/json"):
            log.warning(
                "traces are sent as http/json, a collector takes them on port 4318", extra={"protocol": protocol}
            )
        certificate = read("CERTIFICATE")
        return Endpoint(
            url=url,
            headers=_pairs(read("HEADERS")),
            timeout=float(read("TIMEOUT")) / 1000 if read("TIMEOUT") else TIMEOUT_SECONDS,
            tls=ssl.create_default_context(cafile=certificate) if certificate else None,
        )
    except (ValueError, OSError) as problem:
        log.error("failed to set up traces, none are sent", extra={"error": str(problem)})
        return None


def encode(spans: list[Span], resource: list[object]) -> object:
    """An ExportTraceServiceRequest in OTLP's JSON: IDs are hexadecimal, 64-bit integers are strings."""
    scope = {"scope": {"name": "nstance"}, "spans": [_span(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]}


def _span(span: Span) -> object:
    return {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(int(span.start * 1e9)),
        "endTimeUnixNano": str(int(max(span.start, span.end) * 1e9)),
        "attributes": [_attribute(key, value) for key, value in span.attributes.items()],
        **({"status": {"code": 2, "message": span.error}} if span.error else {}),
    }


def _attribute(key: str, value: str) -> object:
    return {"key": key, "value": {"stringValue": value}}


def _pairs(text: str) -> dict[str, str]:
    """`key=value,key2=value2`, percent-encoded."""
    found = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(key).strip(): unquote(value).strip() for key, _, value in found}
