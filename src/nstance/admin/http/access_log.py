"""The access log: one JSON line per request, with who asked. Bodies, queries and tokens are not in it."""

import json
import sys
from pathlib import Path
from typing import IO

from aiohttp import web
from aiohttp.typedefs import Middleware

from nstance.admin.http.access import CALLER, Handler
from nstance.admin.shard.shapes import timestamp_ms
from nstance.clock import Clock

STANDARD_ERROR = "-"


class AccessLog:
    def __init__(self, target: str, clock: Clock) -> None:
        """`target`: a file, to which lines are appended, or `-` for standard error. Raises OSError."""
        self._clock = clock
        is_file = target != STANDARD_ERROR
        self._file: IO[str] = Path(target).open("a", encoding="utf-8") if is_file else sys.stderr  # noqa: SIM115

    def middleware(self) -> Middleware:
        @web.middleware
        async def log(request: web.Request, handler: Handler) -> web.StreamResponse:
            started, status = self._clock.monotonic(), 499  # the client went away
            try:
                response = await handler(request)
                status = response.status
                return response
            finally:
                self._write(request, status, self._clock.monotonic() - started)

        return log

    def _write(self, request: web.Request, status: int, seconds: float) -> None:
        caller = request.get(CALLER)
        line = {
            "time": timestamp_ms(int(self._clock.wall() * 1000)),
            "client": request.remote,
            "person": caller.person if caller is not None else None,
            "method": request.method,
            "path": request.path,
            "status": status,
            "seconds": round(seconds, 4),
        }
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError:
            pass  # a full disk must not take the dashboard down

    def close(self) -> None:
        if self._file is not sys.stderr:
            self._file.close()
