"""Refusals carry their code, and people get one line."""

from collections.abc import Callable

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import given
from hypothesis import strategies as st

from nstance.wire import status


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (status.not_found, Status.NOT_FOUND),
        (status.failed_precondition, Status.FAILED_PRECONDITION),
        (status.aborted, Status.ABORTED),
        (status.unavailable, Status.UNAVAILABLE),
        (status.exhausted, Status.RESOURCE_EXHAUSTED),
        (status.denied, Status.PERMISSION_DENIED),
        (status.unauthenticated, Status.UNAUTHENTICATED),
        (status.unimplemented, Status.UNIMPLEMENTED),
    ],
)
def test_each_refusal_has_its_code(make: Callable[[str], GRPCError], code: Status) -> None:
    error = make("why")
    assert (error.status, error.message) == (code, "why")


def test_an_invalid_argument_names_its_field() -> None:
    assert status.invalid("group.size", "expected 0 or more, found -1").message == (
        "group.size: expected 0 or more, found -1"
    )


@given(st.text(max_size=3000))
def test_a_sentence_has_a_bound(text: str) -> None:
    message = status.not_found(text).message
    assert message is not None
    assert len(message) <= status.MAX_MESSAGE
    assert message[:900] == text[:900]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (status.not_found("group web"), "not found: group web"),
        (GRPCError(Status.INTERNAL), "a bug in the server, see its log"),
        (TimeoutError(), "no answer in time"),
        (status.UnreachableError("a:1: connection refused"), "a:1: connection refused"),
        (ValueError(), "ValueError"),
        (status.denied("two\nlines\x1b[31m"), "not allowed: two lines�[31m"),
    ],
)
def test_explain(error: Exception, line: str) -> None:
    assert status.explain(error) == line


@given(st.sampled_from(Status), st.none() | st.text())
def test_explain_is_always_one_printable_line(code: Status, message: str | None) -> None:
    line = status.explain(GRPCError(code, message))
    assert line
    assert line.isprintable()
