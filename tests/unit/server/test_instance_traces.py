"""Which trace the spans of an instance belong to."""

from nstance.clock import SystemClock, SystemRng
from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Instance, Put, State
from nstance.server.state import instance_traces
from nstance.server.state.commits import Committed
from nstance.server.state.instance_traces import InstanceTraces
from nstance.telemetry import trace_ids
from nstance.telemetry.trace_ids import SpanContext
from nstance.telemetry.traces import Span, Tracer

OLD, OTHER, NEW = (InstanceId(f"wrk-{number:026}") for number in range(3))
KEY = GroupKey(TenantId("default"), GroupName("web"))


def made() -> tuple[InstanceTraces, list[Span]]:
    spans: list[Span] = []
    return InstanceTraces(Tracer(spans.append, SystemClock(), SystemRng())), spans


def instance(id: InstanceId, state: State = State.PENDING, replaces: InstanceId | None = None) -> Instance:
    return Instance(id=id, tenant=KEY.tenant, group=KEY.name, state=state, created=0.0, replaces=replaces)


def created(id: InstanceId, replaces: InstanceId | None = None) -> Committed:
    return Committed(KEY, (Put(instance(id, replaces=replaces)),), (), {})


def test_a_notice_is_the_root_of_its_own_trace_only() -> None:
    traces, spans = made()
    own = SpanContext(trace_ids.end_of(OLD), "b7ad6b7169203331")
    traces.on_notice(OTHER, own.traceparent)  # it cannot write into the trace of another instance
    traces.on_notice(OLD, "nonsense")
    traces.observe(created(NEW, replaces=OLD))
    assert [span.parent for span in spans if span.name == "decide"] == [""]
    traces, spans = made()
    traces.on_notice(OLD, own.traceparent)
    traces.observe(created(NEW, replaces=OLD))
    assert [span.parent for span in spans if span.name == "decide"] == [own.span_id]


def test_another_leader_continues_the_same_trace() -> None:
    first, before = made()
    second, after = made()
    first.observe(created(NEW, replaces=OLD))
    parent = second.registered(instance(NEW, State.RUNNING, replaces=OLD), SystemClock().monotonic())
    [decide] = [span for span in before if span.name == "decide"]
    assert parent == decide.context
    assert [(span.context.trace_id, span.parent) for span in after] == [(parent.trace_id, parent.span_id)]


def test_what_is_remembered_is_bounded() -> None:
    traces, _ = made()
    for number in range(instance_traces.MAX_TRACES + 50):
        traces.observe(created(InstanceId(f"wrk-{number:026}")))
    assert len(traces._roots) == instance_traces.MAX_TRACES


def test_a_change_that_neither_creates_nor_ends_an_instance_has_no_span() -> None:
    traces, spans = made()
    before = instance(OLD, State.RUNNING)
    traces.observe(Committed(KEY, (Put(instance(OLD, State.RUNNING)),), (), {OLD: before}))
    traces.observe(Committed(KEY, (Put(instance(OLD, State.DELETING)),), (), {OLD: instance(OLD, State.DRAINING)}))
    assert spans == []
