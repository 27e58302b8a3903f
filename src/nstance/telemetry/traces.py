"""Spans: what was done, from when to when, as a part of which trace.

A program has a `Tracer` if traces are exported, and None otherwise: then nothing is made and nothing is imported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from nstance.clock import Clock, Rng
from nstance.telemetry.trace_ids import SpanContext


class SpanKind(IntEnum):
    """As OTLP numbers them."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    context: SpanContext
    parent: str  # span ID; empty: the root
    name: str
    kind: SpanKind
    start: float  # seconds since 1970
    end: float
    attributes: Mapping[str, str]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlan:
    """What a span will be, apart from its times."""

    name: str
    trace_id: str
    parent: str = ""
    span_id: str = ""  # empty: a random one
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Mapping[str, str] = field(default_factory=dict)


class Tracer:
    def __init__(self, export: Callable[[Span], None], clock: Clock, rng: Rng) -> None:
        """`export` must not block."""
        self._export = export
        self._clock = clock
        self._rng = rng

    def record(self, plan: SpanPlan, *, started: float, ended: float | None = None, error: str = "") -> SpanContext:
        """A span that is over. Both times are monotonic; without `ended` it ends now."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        context = SpanContext(plan.trace_id, plan.span_id or f"{self._rng.bits(64) or 1:016x}")
        span = Span(
            context=context,
            parent=plan.parent,
            name=plan.name,
            kind=plan.kind,
            start=wall - (now - started),
            end=wall - (now - (now if ended is None else ended)),
            attributes=plan.attributes,
            error=error,
        )
        self._export(span)
        return context
