"""A collector of traces: takes what programs send and reads it with OpenTelemetry's own definitions."""

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    program: str
    trace_id: str
    span_id: str
    parent: str
    name: str
    start: int  # nanoseconds
    end: int
    attributes: dict[str, str]
    error: str


@dataclass
class OtlpReceiver:
    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)  # of the last request
    statuses: list[int] = field(default_factory=list)  # of the next answers; then 200

    async def take(self, request: web.Request) -> web.Response:
        status = self.statuses.pop(0) if self.statuses else 200
        self.headers = dict(request.headers)
        if status == 200:
            self.spans += read(await request.read())
        return web.json_response({}, status=status)


def read(body: bytes) -> list[ReceivedSpan]:
    """Unknown fields and wrong types are errors."""
    message = json_format.ParseDict(_as_protobuf_json(json.loads(body)), ExportTraceServiceRequest())
    found = []
    for each in message.resource_spans:
        resource = {item.key: item.value.string_value for item in each.resource.attributes}
        for span in (span for scope in each.scope_spans for span in scope.spans):
            assert len(span.trace_id) == 16
            assert len(span.span_id) == 8
            assert len(span.parent_span_id) in (0, 8)
            found.append(
                ReceivedSpan(
                    program=resource["service.name"],
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    name=span.name,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes={item.key: item.value.string_value for item in span.attributes},
                    error=span.status.message,
                )
            )
    return found


def _as_protobuf_json(value: Any) -> Any:
    """OTLP writes IDs in hexadecimal, where the JSON of protobuf has base64."""
    if isinstance(value, list):
        return [_as_protobuf_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(each)).decode()
        if key in ("traceId", "spanId", "parentSpanId")
        else _as_protobuf_json(each)
        for key, each in value.items()
    }


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    app = web.Application()
    app.router.add_post("/v1/traces", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
