"""An HTTP service that keeps the members of a load balancer, as a user of a webhook would write it."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

MAX_AGE_SECONDS = 300


class MemberService:
    def __init__(self, secret: bytes, auth: str = "hmac") -> None:
        self.secret = secret
        self.auth = auth
        self.members: dict[str, dict[str, Any]] = {}
        self.answers: list[int] = []  # to the next calls; 0: the effect happens, the answer is lost; -1: it hangs
        self.calls: list[str] = []
        self.age = 0  # how old calls seem to be, in seconds
        self.url = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.calls.append(request.method)
        status = self.answers.pop(0) if self.answers else 200
        if status == -1:
            await asyncio.sleep(60)
        if status >= 300:
            return web.Response(status=status, text="not now", headers={"Location": "https://elsewhere.example/"})
        if not self._is_genuine(request, body):
            return web.Response(status=401, text="bad signature")
        if request.method == "POST":
            self._change(json.loads(body))
        if status == 0 and request.transport is not None:
            request.transport.abort()
        return web.json_response({"members": list(self.members.values())})

    def _is_genuine(self, request: web.Request, body: bytes) -> bool:
        if not self.secret:
            return True
        if self.auth == "token":
            return request.headers.get("Authorization") == f"Bearer {self.secret.decode()}"
        timestamp = request.headers.get("X-Nstance-Timestamp", "0")
        signed = f"{timestamp}.{request.method}.{request.path_qs}.".encode() + body
        expected = "sha256=" + hmac.digest(self.secret, signed, hashlib.sha256).hex()
        is_fresh = abs(time.time() + self.age - int(timestamp)) < MAX_AGE_SECONDS
        return is_fresh and hmac.compare_digest(expected, request.headers.get("X-Nstance-Signature", ""))

    def _change(self, asked: dict[str, Any]) -> None:
        member = asked["member"]
        if asked["action"] == "register":
            self.members[member["provider_id"]] = member
        else:
            self.members.pop(member["provider_id"], None)


@contextlib.asynccontextmanager
async def running(service: MemberService, *, tls: tuple[Path, Path] | None = None) -> AsyncIterator[MemberService]:
    """`tls`: certificate and key."""
    app = web.Application()
    app.router.add_route("*", "/members", service._answer)
    context = None
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    service.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}/members"
    try:
        yield service
    finally:
        await runner.cleanup()
