"""gRPC errors, each with the code that tells the caller what to do next.

A service raises one of these, and the caller sees the same code and message. INTERNAL is not among them: it means a bug,
and only the dispatcher uses it.
"""

from functools import partial

from grpclib.const import Status
from grpclib.exceptions import GRPCError


class UnreachableError(ConnectionError):
    """No answer. The request may have been executed or not; the caller decides whether to repeat it."""


MAX_MESSAGE = 1_000  # characters of an error message, which is sent in a header


def refusal(status: Status, message: str) -> GRPCError:
    return GRPCError(status, message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…")


def invalid(field: str, message: str) -> GRPCError:
    return refusal(Status.INVALID_ARGUMENT, f"{field}: {message}")


not_found = partial(refusal, Status.NOT_FOUND)  # also for objects of another tenant
# The request is valid, but its object is not in the right state: a static group, a busy instance.
failed_precondition = partial(refusal, Status.FAILED_PRECONDITION)
aborted = partial(refusal, Status.ABORTED)  # another writer was faster: read again, then decide again
unavailable = partial(refusal, Status.UNAVAILABLE)  # another server, or a later attempt, can answer
exhausted = partial(refusal, Status.RESOURCE_EXHAUSTED)
denied = partial(refusal, Status.PERMISSION_DENIED)
unauthenticated = partial(refusal, Status.UNAUTHENTICATED)
unimplemented = partial(refusal, Status.UNIMPLEMENTED)

_MEANING = {
    Status.CANCELLED: "the call was cancelled",
    Status.UNKNOWN: "the server failed for an unknown reason",
    Status.INVALID_ARGUMENT: "the request is not valid",
    Status.DEADLINE_EXCEEDED: "no answer in time",
    Status.NOT_FOUND: "not found",
    Status.ALREADY_EXISTS: "already exists",
    Status.PERMISSION_DENIED: "not allowed",
    Status.RESOURCE_EXHAUSTED: "a limit was reached",
    Status.FAILED_PRECONDITION: "not possible now",
    Status.ABORTED: "changed by another writer",
    Status.OUT_OF_RANGE: "out of range",
    Status.UNIMPLEMENTED: "the server does not offer this",
    Status.INTERNAL: "a bug in the server, see its log",
    Status.UNAVAILABLE: "the server cannot answer now",
    Status.DATA_LOSS: "data was lost",
    Status.UNAUTHENTICATED: "the certificate was not accepted",
}


def explain(error: BaseException) -> str:
    """One line for a person."""
    if isinstance(error, GRPCError):
        meaning = _MEANING.get(error.status, error.status.name)
        text = f"{meaning}: {error.message}" if error.message else meaning
    elif isinstance(error, TimeoutError):
        text = str(error) or _MEANING[Status.DEADLINE_EXCEEDED]
    else:
        text = str(error) or type(error).__name__
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "�" for c in line)
