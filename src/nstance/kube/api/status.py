"""Error responses of the API server, in the form that standard clients expect.

The trap: clients decide by `reason`, `code` and `details`. A wrong one turns a retry into an endless loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nstance.kube.port import Object


@dataclass(frozen=True, slots=True)
class Cause:
    """A problem of one field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def document(self) -> Object:
        document = {"reason": self.reason, "message": self.message}
        return {**document, "field": self.field} if self.field else document


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str, *, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def document(self) -> Object:
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            status["details"] = self.details
        return status


def success(*, group: str, plural: str, name: str, uid: str) -> Object:
    details = {"name": name, "kind": plural, "uid": uid} | ({"group": group} if group else {})
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _named(group: str, plural: str, name: str) -> tuple[str, Object]:
    details = {"name": name, "kind": plural} | ({"group": group} if group else {})
    return f'{plural}.{group} "{name}"' if group else f'{plural} "{name}"', details


def not_found(group: str, plural: str, name: str) -> ApiError:
    what, details = _named(group, plural, name)
    return ApiError(404, "NotFound", f"{what} not found", details=details)


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    what, details = _named(group, plural, name)
    return ApiError(409, "AlreadyExists", f"{what} already exists", details=details)


def conflict(group: str, plural: str, name: str, why: str = "") -> ApiError:
    what, details = _named(group, plural, name)
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return ApiError(409, "Conflict", f"Operation cannot be fulfilled on {what}: {why}", details=details)


def forbidden(group: str, plural: str, name: str, why: str, causes: Sequence[Cause] = ()) -> ApiError:
    what, details = _named(group, plural, name)
    if causes:
        details["causes"] = [cause.document() for cause in causes]
    return ApiError(403, "Forbidden", f"{what} is forbidden: {why}", details=details)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    what, details = _named(group, kind, name)
    details["causes"] = [cause.document() for cause in causes]
    texts = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return ApiError(422, "Invalid", f"{what} is invalid: {listed}", details=details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unprocessable(message: str) -> ApiError:
    """A patch that cannot be applied."""
    return ApiError(422, "Invalid", message)


def expired(asked: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def method_not_allowed(group: str, plural: str, verb: str) -> ApiError:
    details: dict[str, Any] = {"kind": plural} | ({"group": group} if group else {})
    message = f'the server does not allow this method on the requested resource ("{verb}")'
    return ApiError(405, "MethodNotAllowed", message, details=details)


def unsupported_media(found: str, accepted: Sequence[str]) -> ApiError:
    message = (
        f"the body of the request was in an unknown format {found!r} - accepted media types: {', '.join(accepted)}"
    )
    return ApiError(415, "UnsupportedMediaType", message)


def too_many(message: str, causes: Sequence[Cause]) -> ApiError:
    return ApiError(429, "TooManyRequests", message, details={"causes": [cause.document() for cause in causes]})


def internal(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")
