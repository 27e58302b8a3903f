"""The server's spans of a replacement: decide, journal, create, delete, register.

All of them belong to the trace of the instance that ends, whose ID needs no memory. Which span is the first of its trace is
remembered for a while, so that the later ones have it as their parent. If an agent traces too, its notice is the first.
"""

from collections import OrderedDict

from nstance.model.ids import InstanceId
from nstance.model.instance import Instance, Put, State
from nstance.server.state.commits import Committed
from nstance.telemetry import trace_ids
from nstance.telemetry.trace_ids import SpanContext
from nstance.telemetry.traces import SpanKind, SpanPlan, Tracer

MAX_TRACES = 10_000  # whose first span is remembered
LEAVING = frozenset({State.DRAINING, State.DELETING})


class InstanceTraces:
    """Of one server, over all its terms."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._roots: OrderedDict[str, str] = OrderedDict()  # the first span of a trace

    def on_notice(self, id: InstanceId, traceparent: str) -> None:
        """An agent sent a notice about its own instance. It cannot write into another trace than its own."""
        parent = trace_ids.parse(traceparent)
        if parent is not None and parent.trace_id == trace_ids.end_of(id):
            self._root(parent.trace_id, parent.span_id)

    def observe(self, committed: Committed) -> None:
        for change in committed.changes:
            if not isinstance(change, Put):
                continue
            instance, before = change.instance, committed.before.get(change.instance.id)
            if before is None and instance.state is State.PENDING:
                self._decided(committed, instance, trace_ids.birth_of(instance), trace_ids.create_step(instance))
            elif before is not None and instance.state in LEAVING and before.state not in LEAVING:
                self._decided(committed, instance, trace_ids.end_of(instance.id), trace_ids.LEAVE)

    def created(self, instance: Instance, started: float, error: str = "") -> None:
        """A create call has ended."""
        offer = {"nstance.market": instance.market, "nstance.instance_type": instance.instance_type}
        plan = self._under_birth("create", instance, SpanKind.CLIENT, **offer)
        self._tracer.record(plan, started=started, error=error)

    def deleted(self, instance: Instance, started: float, error: str = "") -> None:
        trace_id = trace_ids.end_of(instance.id)
        plan = SpanPlan(
            name="delete",
            trace_id=trace_id,
            parent=trace_ids.span_of(trace_id, trace_ids.LEAVE),
            kind=SpanKind.CLIENT,
            attributes=_attributes(instance),
        )
        self._tracer.record(plan, started=started, error=error)

    def registered(self, instance: Instance, started: float) -> SpanContext:
        """An agent was registered. Returns what its own span belongs under."""
        plan = self._under_birth("registered", instance, SpanKind.SERVER)
        self._tracer.record(plan, started=started)
        return SpanContext(plan.trace_id, plan.parent)

    def _under_birth(self, name: str, instance: Instance, kind: SpanKind, **attributes: str) -> SpanPlan:
        """Under the decision to create the instance, which may have been another leader's."""
        trace_id = trace_ids.birth_of(instance)
        return SpanPlan(
            name=name,
            trace_id=trace_id,
            parent=trace_ids.span_of(trace_id, trace_ids.create_step(instance)),
            kind=kind,
            attributes=_attributes(instance) | attributes,
        )

    def _decided(self, committed: Committed, instance: Instance, trace_id: str, step: str) -> None:
        span_id = trace_ids.span_of(trace_id, step)
        parent = self._root(trace_id, span_id)
        reasons = ",".join(reason.code.value for reason in committed.reasons if reason.instance == instance.id)
        attributes = _attributes(instance) | {"nstance.reasons": reasons, "nstance.state": instance.state.value}
        decide = SpanPlan(
            name="decide",
            trace_id=trace_id,
            parent="" if parent == span_id else parent,
            span_id=span_id,
            attributes=attributes,
        )
        self._tracer.record(decide, started=committed.posted, ended=committed.decided)
        journal = SpanPlan(name="journal", trace_id=trace_id, parent=span_id, attributes=_attributes(instance))
        self._tracer.record(journal, started=committed.decided)

    def _root(self, trace_id: str, span_id: str) -> str:
        """The first span of the trace: this one, if there is none yet."""
        root = self._roots.setdefault(trace_id, span_id)
        if len(self._roots) > MAX_TRACES:
            self._roots.popitem(last=False)
        return root


def _attributes(instance: Instance) -> dict[str, str]:
    found = {
        "nstance.instance.id": str(instance.id),
        "nstance.tenant": str(instance.tenant),
        "nstance.group": str(instance.group),
    }
    predecessor = instance.replaces or instance.predecessor
    return found | ({"nstance.replaces": str(predecessor)} if predecessor is not None else {})
