"""What an API server's refusal means.

The body is a Status whose `reason` says more than the HTTP code: 409 is both "exists" and "changed". The trap: a server
quotes what it could not read, and what it could not read may be a Secret; of those only the names of fields are repeated.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from nstance.kube import errors, kinds

_LONGEST = 4096
_INVALID = frozenset({400, 405, 406, 413, 415, 422})
_LONGEST_DELAY = 300.0


def failure(
    status: int, headers: Mapping[str, str], body: bytes, *, call: str, kind: kinds.Kind, changes: bool
) -> errors.KubeError:
    """`changes`: the request was one that changes something, so that not every failure means that nothing happened."""
    told = _status(body)
    message = f"{call}: {_message(status, told, body, secret=kind == kinds.SECRET)}"
    return named(status, str(told.get("reason") or ""), message, delay=_delay(headers, told), changes=changes)


def named(status: int, reason: str, message: str, *, delay: float | None, changes: bool) -> errors.KubeError:
    match status:
        case 401 | 403:
            return errors.ForbiddenError(message)
        case 404:
            return errors.NotFoundError(message)
        case 409 if reason == "AlreadyExists":
            return errors.AlreadyExistsError(message)
        case 409:
            return errors.ConflictError(message)
        case 410:
            return errors.ExpiredError(message)
        case 429:
            return errors.ThrottledError(message, delay=1.0 if delay is None else delay)
        case 503 if delay is not None:
            return errors.ThrottledError(message, delay=delay)
        case 503:
            return errors.UnavailableError(message)
        case _ if status in _INVALID:
            return errors.InvalidError(message)
        case _ if status < 400:  # a redirect: following it would hand our token to somebody else
            return errors.UnavailableError(f"{message}; redirects are not followed, check the server's address")
        case _:  # a webhook, etcd or a proxy failed, before or after the change
            return errors.UnknownOutcomeError(message) if changes else errors.UnavailableError(message)


def ended(status: Mapping[str, Any], *, call: str) -> errors.KubeError:
    """An ERROR event's Status, in the middle of a watch."""
    code = status.get("code")
    if code == 410 or status.get("reason") in ("Expired", "Gone"):
        return errors.ExpiredError(f"{call}: {_text(status, 410)}")
    return errors.UnavailableError(f"{call}: the server ended the watch: {_text(status, code)}")


def _status(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) and told.get("kind") == "Status" else {}


def _message(status: int, told: Mapping[str, Any], body: bytes, *, secret: bool) -> str:
    if not told:
        said = "" if secret else body[:200].decode(errors="replace").strip()
        return f"HTTP status {status}" + (f": {said}" if said else "")
    if secret and status in _INVALID:
        fields = ", ".join(str(cause.get("field")) for cause in _causes(told))
        return f"{told.get('reason') or status}" + (f" (fields {fields})" if fields else "")
    return _text(told, status)


def _text(told: Mapping[str, Any], status: object) -> str:
    """The server's message, and those causes that it left out."""
    text = str(told.get("message") or told.get("reason") or f"HTTP status {status}")
    for cause in _causes(told):
        said = str(cause.get("message") or cause.get("reason") or "")
        if said and said not in text:
            text += f"; {cause.get('field') or 'object'}: {said}"
    return text[:_LONGEST]


def _causes(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    details = told.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []


def _delay(headers: Mapping[str, str], told: Mapping[str, Any]) -> float | None:
    details = told.get("details")
    for value in (headers.get("Retry-After"), details.get("retryAfterSeconds") if isinstance(details, dict) else None):
        try:
            seconds = float(value) if value is not None else math.nan  # a date, which HTTP allows, is not a number
        except (TypeError, ValueError, OverflowError):
            continue
        if seconds >= 0:
            return min(seconds, _LONGEST_DELAY)
    return None
