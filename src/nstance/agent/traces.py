"""The agent's spans: the notice that its machine ends, and its registration."""

import logging

from nstance.agent.metrics import NOTICE_KINDS
from nstance.clock import Clock
from nstance.model.ids import InstanceId
from nstance.telemetry import trace_ids
from nstance.telemetry.trace_ids import SpanContext
from nstance.telemetry.traces import SpanKind, SpanPlan, Tracer
from nstance.v1 import agent_pb2

log = logging.getLogger(__name__)


class AgentTraces:
    def __init__(self, instance: InstanceId, tracer: Tracer | None, clock: Clock) -> None:
        """Without a tracer, trace IDs are only in the log."""
        self._attributes = {"nstance.instance.id": str(instance)}
        self._trace_id = trace_ids.end_of(instance)
        self._tracer = tracer
        self._clock = clock
        self._noticed: dict[int, SpanContext] = {}  # by kind: a repeated notice has one span

    def noticed(self, notice: agent_pb2.Notice) -> agent_pb2.Notice:
        """The notice as it is sent: with the context of its span, if spans are exported."""
        kind = NOTICE_KINDS.get(notice.kind, "other")
        log.info("notice sent to the server", extra={"kind": kind, "trace_id": self._trace_id})
        if self._tracer is None:
            return notice
        context = self._noticed.get(notice.kind)
        if context is None:
            plan = SpanPlan(
                name="notice",
                trace_id=self._trace_id,
                kind=SpanKind.CLIENT,
                attributes=self._attributes | {"nstance.notice": kind},
            )
            context = self._noticed[notice.kind] = self._tracer.record(plan, started=self._clock.monotonic())
        made = agent_pb2.Notice()
        made.CopyFrom(notice)
        made.traceparent = context.traceparent
        return made

    def registered(self, traceparent: str, started: float) -> None:
        """`traceparent`: what the server says the registration is a part of; empty if it exports no traces."""
        parent = trace_ids.parse(traceparent)
        log.info("agent registered", extra={"trace_id": parent.trace_id} if parent is not None else {})
        if self._tracer is not None and parent is not None:
            plan = SpanPlan(
                name="register",
                trace_id=parent.trace_id,
                parent=parent.span_id,
                kind=SpanKind.CLIENT,
                attributes=self._attributes,
            )
            self._tracer.record(plan, started=started)
