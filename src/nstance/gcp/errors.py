"""What can go wrong with a call to Google Cloud."""

import contextlib
import json
from typing import Any


class GoogleError(Exception):
    """Google answered with an error. `reason` is Google's own word for it, empty if the answer has none."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def is_throttled(self) -> bool:
        return self.status == 429 or self.reason in _THROTTLED

    @property
    def is_server_fault(self) -> bool:
        """Google failed, not the request: it may have been carried out."""
        return self.status >= 500 or self.status == 408

    @property
    def is_denied(self) -> bool:
        return self.status == 403 and not self.is_throttled

    @property
    def is_expired(self) -> bool:
        """The token is not accepted, or no longer: fetch another one."""
        return self.status == 401


_THROTTLED = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED"})


def parse_error(status: int, body: bytes) -> GoogleError:
    """From an answer that is no success. Services differ in how they write errors, and a proxy may have answered."""
    found: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(body)
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, dict):
        listed = error.get("errors")
        first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        reason = first.get("reason") or error.get("status") or ""
        return GoogleError(status, str(reason), str(error.get("message") or "no message")[:600])
    if isinstance(error, str):  # of the token services
        return GoogleError(status, error, str(found.get("error_description") or "no message")[:600])
    return GoogleError(status, "", body[:200].decode("utf-8", "replace").strip() or "no message")
