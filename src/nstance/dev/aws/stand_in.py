"""A stand-in for AWS: moto holds the state, and this proxy in front of it is as strict as AWS.

moto answers in AWS's shapes but forgives what AWS does not. The proxy adds: idempotency by ClientToken with its two errors,
pages, instances that are not visible yet, capacity, quotas and launch budgets, interfaces that cannot be stolen, targets
with a life cycle, and the faults that a test asks for, also a reply that is lost after the call was carried out. The state
stays moto's: `instances.existing` reads it past all faults.
"""

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from nstance.clock import Clock
from nstance.dev import loopback
from nstance.dev.aws import metadata, requests, xml
from nstance.dev.aws.books import Books, Params
from nstance.dev.aws.buckets import Buckets
from nstance.dev.aws.instances import Instances
from nstance.dev.aws.interfaces import Interfaces
from nstance.dev.aws.moto import Moto, Refusal, Reply
from nstance.dev.aws.rules import Rules
from nstance.dev.aws.targets import Targets

MAX_BODY_BYTES = 64 << 20
_FORM = "application/x-www-form-urlencoded"
_HOP = frozenset({"host", "content-length", "connection", "transfer-encoding", "accept-encoding", "content-encoding"})
_NOT_COPIED = _HOP | {"date", "server"}

Handler = Callable[[Params, bytes, Mapping[str, str]], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    service: str
    action: str
    params: Params  # of a form
    body: bytes
    method: str
    path: str
    query: Mapping[str, str]

    @property
    def json(self) -> Mapping[str, Any]:
        found = json.loads(self.body or b"{}")
        return found if isinstance(found, dict) else {}


class Gate(Protocol):
    """What a test lets callers do. Both raise Refusal, in the words of the service."""

    async def check(self, call: Call) -> None: ...

    def check_missing(self, call: Call, status: int) -> None:
        """Called when the answer is known."""
        ...


class StandIn:
    def __init__(self, moto: Moto, clock: Clock, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.books = Books()
        self.instances = Instances(moto, clock, self.rules, self.books)
        self.metadata = metadata.MetadataService(moto, clock, self.books)
        self.gate: Gate | None = None  # None: callers may do everything
        self.url = ""
        self.moto = moto
        self._clock = clock
        self._server = contextlib.AsyncExitStack()
        self._buckets = Buckets()
        interfaces = Interfaces(moto, clock, self.rules, self.books)
        targets = Targets(moto, clock, self.rules, self.books, self.instances)
        self._handlers: dict[tuple[str, str], Handler] = {
            ("ec2", "RunInstances"): self.instances.run,
            ("ec2", "DescribeInstances"): self.instances.describe,
            ("ec2", "TerminateInstances"): self.instances.terminate,
            ("ec2", "ModifyInstanceAttribute"): self.instances.modify_attribute,
            ("ec2", "GetConsoleOutput"): self.instances.console,
            ("ec2", "AttachNetworkInterface"): interfaces.attach,
            ("ec2", "DetachNetworkInterface"): interfaces.detach,
            ("ec2", "AssignPrivateIpAddresses"): interfaces.assign,
            ("ec2", "DescribeNetworkInterfaces"): interfaces.describe,
            ("elasticloadbalancing", "RegisterTargets"): targets.register,
            ("elasticloadbalancing", "DeregisterTargets"): targets.deregister,
            ("elasticloadbalancing", "DescribeTargetHealth"): targets.health,
        }

    async def start(self, port: int = 0) -> None:
        """Raises OSError."""
        answering = loopback.answering(self._serve, port=port, max_body=MAX_BODY_BYTES)
        self.url = await self._server.enter_async_context(answering)

    async def close(self) -> None:
        await self._server.aclose()

    def metadata_url(self, instance: str) -> str:
        """For `AWS_EC2_METADATA_SERVICE_ENDPOINT` of a program on that instance."""
        return f"{self.url}{metadata.PREFIX}{instance}"

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith(metadata.PREFIX):
            return await self.metadata.serve(request)
        body = await request.read()
        service = _service(request.headers)
        is_form = request.headers.get("Content-Type", "").startswith(_FORM)
        params = _form(body) if is_form else {}
        action = params.get("Action") or request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        self.books.calls.append((action, params))
        if self.rules.call_seconds:
            await self._clock.sleep(self.rules.call_seconds)
        fault = self.rules.next_fault(action)
        if fault is not None and fault.delay:
            await self._clock.sleep(fault.delay)
        try:
            if fault is not None and not fault.after_effect:
                if fault.before_effect:
                    return _cut(request)
                if fault.code:
                    raise Refusal(fault.code, fault.message or "as a test asked", fault.status)
            answer, status, headers = await self._answer(service, action, params, body, request)
        except Refusal as refusal:
            answer, status = _error(refusal, service, is_form=is_form), refusal.status
            is_xml = is_form or service == "s3"
            headers = {"Content-Type": "text/xml" if is_xml else "application/x-amz-json-1.1"}
        if fault is not None and fault.after_effect:
            return _cut(request)
        copied = {name: value for name, value in headers.items() if name.lower() not in _NOT_COPIED}
        if request.method == "HEAD" and "Content-Length" in headers:
            copied["Content-Length"] = headers["Content-Length"]  # the size of the object
        return web.Response(body=answer, status=status, headers=copied)

    async def _answer(self, service: str, action: str, params: Params, body: bytes, request: web.Request) -> Reply:
        call = Call(
            service=service,
            action=action,
            params=params,
            body=body,
            method=request.method,
            path=request.path,
            query=request.query,
        )
        _check_request(call)
        if self.gate is not None:
            await self.gate.check(call)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        handler = self._handlers.get((service, action))
        if handler is not None:
            return await handler(params, body, headers), 200, {"Content-Type": "text/xml"}
        if service == "s3":
            return await self._answer_s3(call, request, headers)
        return await self.moto.forward(request.method, request.path_qs, headers, body)

    async def _answer_s3(self, call: Call, request: web.Request, headers: Mapping[str, str]) -> Reply:
        if (answer := self._buckets.answer(request, call.body)) is not None:
            return answer
        async with self._buckets.turn(request):
            reply = await self.moto.forward(request.method, request.path_qs, headers, call.body)
        if self.gate is not None:
            self.gate.check_missing(call, reply[1])
        return reply


def _check_request(call: Call) -> None:
    """Raises Refusal for what AWS does not know."""
    service, action = call.service, call.action
    try:
        if call.params and service in requests.FORMS:
            if unknown := requests.unknown_parameters(service, call.params):
                raise Refusal("UnknownParameter", f"The parameter {unknown[0]} is not recognized")
        elif action and service in requests.JSON and (faults := requests.find_faults(service, action, call.json)):
            raise Refusal("ValidationException", faults)
    except KeyError:
        raise Refusal("InvalidAction", f"The action {action} is not valid for this web service.") from None


def _service(headers: Mapping[str, str]) -> str:
    """From the scope of the signature."""
    scope = headers.get("Authorization", "").partition("Credential=")[2].partition(",")[0].split("/")
    return scope[3] if len(scope) > 3 else ""


def _form(body: bytes) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _error(refusal: Refusal, service: str, *, is_form: bool) -> bytes:
    if is_form or service == "s3":
        return xml.error(service, refusal.code, refusal.message)
    return json.dumps({"__type": refusal.code, "message": refusal.message}).encode()


def _cut(request: web.Request) -> web.StreamResponse:
    """No reply: the connection is reset."""
    transport = request.transport
    if transport is not None:
        transport.close()
    raise asyncio.CancelledError
