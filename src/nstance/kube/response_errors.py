"""Turns an API server's error responses into `KubeError`s.

The body is a Status whose `reason` is more precise than the HTTP code: 409 means both "exists" and "changed". The trap: a
server quotes input that it rejects, which may be a Secret; for Secrets only field names are repeated.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from nstance.kube import errors, kinds

_MAX_MESSAGE_CHARACTERS = 4096
_INVALID_STATUSES = frozenset({400, 405, 406, 413, 415, 422})
_MAX_DELAY_SECONDS = 300.0


def from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, call: str, kind: kinds.Kind, changes: bool
) -> errors.KubeError:
    """`changes`: the request may have changed something, so a failure does not prove that nothing happened."""
    document = _status(body)
    message = f"{call}: {_message(status, document, body, secret=kind == kinds.SECRET)}"
    return from_status(
        status, str(document.get("reason") or ""), message, delay=_delay(headers, document), changes=changes
    )


def from_status(status: int, reason: str, message: str, *, delay: float | None, changes: bool) -> errors.KubeError:
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
        case _ if status in _INVALID_STATUSES:
            return errors.InvalidError(message)
        case _ if status < 400:  # a redirect: following it would send our token to another server
            return errors.UnavailableError(f"{message}; redirects are not followed, check the server's address")
        case _:  # a webhook, etcd or a proxy failed before or after the change
            return errors.UnknownOutcomeError(message) if changes else errors.UnavailableError(message)


def from_watch_error(status: Mapping[str, Any], *, call: str) -> errors.KubeError:
    """From the Status of an ERROR event in a watch."""
    code = status.get("code")
    if code == 410 or status.get("reason") in ("Expired", "Gone"):
        return errors.ExpiredError(f"{call}: {_text(status, 410)}")
    return errors.UnavailableError(f"{call}: the server ended the watch: {_text(status, code)}")


def _status(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "Status" else {}


def _message(status: int, document: Mapping[str, Any], body: bytes, *, secret: bool) -> str:
    if not document:
        text = "" if secret else body[:200].decode(errors="replace").strip()
        return f"HTTP status {status}" + (f": {text}" if text else "")
    if secret and status in _INVALID_STATUSES:
        fields = ", ".join(str(cause.get("field")) for cause in _causes(document))
        return f"{document.get('reason') or status}" + (f" (fields {fields})" if fields else "")
    return _text(document, status)


def _text(document: Mapping[str, Any], status: object) -> str:
    """The server's message, and the causes that it does not mention."""
    text = str(document.get("message") or document.get("reason") or f"HTTP status {status}")
    for cause in _causes(document):
        reason = str(cause.get("message") or cause.get("reason") or "")
        if reason and reason not in text:
            text += f"; {cause.get('field') or 'object'}: {reason}"
    return text[:_MAX_MESSAGE_CHARACTERS]


def _causes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    details = document.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []


def _delay(headers: Mapping[str, str], document: Mapping[str, Any]) -> float | None:
    details = document.get("details")
    for value in (headers.get("Retry-After"), details.get("retryAfterSeconds") if isinstance(details, dict) else None):
        try:
            seconds = float(value) if value is not None else math.nan  # a date, which HTTP allows, is not a number
        except (TypeError, ValueError, OverflowError):
            continue
        if seconds >= 0:
            return min(seconds, _MAX_DELAY_SECONDS)
    return None
