"""Failures as problem details (RFC 9457)."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from aiohttp import web

MEDIA = "application/problem+json"


class ProblemError(Exception):
    """A request is rejected; the message says what was expected, what was found and what to do."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}


def response(
    status: int,
    detail: str,
    *,
    headers: Mapping[str, str],
    errors: Sequence[Mapping[str, Any]] = (),
    more: Mapping[str, Any] | None = None,
) -> web.Response:
    """`errors`: of the shards that failed. `more`: further members."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if errors:
        body["errors"] = list(errors)
    body |= more or {}
    return web.Response(
        text=json.dumps(body, ensure_ascii=False), status=status, headers=headers, content_type=MEDIA, charset="utf-8"
    )
