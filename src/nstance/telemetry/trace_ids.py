"""IDs of traces and spans, in the format of W3C Trace Context.

The trace of a replacement is named after the instance that ends: its ID is a hash. So a server, its successor, the agent
and the operator agree on it without asking each other, and the journal need not carry it. The IDs are in logs even if no
trace is exported.
"""

import contextvars
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an agent has no records
    from nstance.model.instance import Instance

LEAVE = "leave"  # names the decision that an instance leaves
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

current: contextvars.ContextVar[str] = contextvars.ContextVar(
    "trace_id", default=""
)  # of the running task, for its logs


@dataclass(frozen=True, slots=True)
class SpanContext:
    trace_id: str  # hexadecimal
    span_id: str

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


def end_of(instance: str) -> str:
    """The trace of all that follows from the end of an instance: its drain, its deletion and its replacement."""
    return _hash(f"nstance-end/{instance}", 16)


def birth_of(instance: "Instance") -> str:
    """The trace in which an instance is created: that of its predecessor's end, or its own if it has none."""
    predecessor = instance.replaces or instance.predecessor
    return end_of(predecessor) if predecessor is not None else _hash(f"nstance-birth/{instance.id}", 16)


def of_change(before: "Instance | None", instance: "Instance") -> str:
    """The trace that a change of a record belongs to: an instance is being born until it has registered."""
    return birth_of(instance) if before is None or before.registered is None else end_of(instance.id)


def create_step(instance: "Instance") -> str:
    """Names the decision to create an instance: a trace may have several, if replacements fail."""
    return f"create {instance.id}"


def span_of(trace_id: str, name: str) -> str:
    """The ID of a span that happens once in its trace."""
    return _hash(f"nstance-span/{trace_id}/{name}", 8)


def parse(traceparent: str) -> SpanContext | None:
    """None if it is not one; peers may send anything."""
    found = TRACEPARENT.fullmatch(traceparent)
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return SpanContext(found[1], found[2])


def _hash(text: str, size: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * size]
