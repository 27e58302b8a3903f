"""From a request's headers to the service's method, and from its errors to a status.

A GRPCError of a service passes unchanged. Any other exception is a bug: it is logged with its traceback, and only
"internal error" leaves the process. The trap: a call can be cancelled before its first line ran, so clean-up is attached
to the task, not to its body.
"""

import asyncio
import binascii
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from grpclib import const, metadata
from grpclib import server as grpclib_server
from grpclib.const import Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.events import _DispatchServerEvents
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.protocol import AbstractHandler
from h2.exceptions import ProtocolError

from nstance.pki import names
from nstance.wire import peer, status
from nstance.wire.limits import Limits
from nstance.wire.stream import Stream

log = logging.getLogger("nstance.wire")

MAX_TIMEOUT_SECONDS = 86_400.0  # seconds; what a client says beyond is taken as this

_CONTENT_TYPE = "application/grpc"
_CODEC = ProtoCodec()
_NO_EVENTS = _DispatchServerEvents()
_NO_METHOD: Any = const.Handler(lambda stream: None, const.Cardinality.UNARY_UNARY, None, None)  # for refusals
_NO_TIMEOUT: AbstractAsyncContextManager[None] = nullcontext()

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What one port serves, and to whom."""

    methods: Mapping[str, const.Handler]
    limits: Limits
    other_services: Mapping[str, str] = field(default_factory=dict)  # service name → the port that serves it
    role: names.Role | None = None  # of the certificates that are accepted; None: no certificate is required
    cluster: str | None = None
    on_rejected_peer: Callable[[peer.Connection, str], None] = lambda connection, reason: None  # once per connection

    def admit(self, connection: peer.Connection) -> None:
        """Raises if this peer may not use this port."""
        if self.role is None:
            return
        if connection.identity is None:
            raise status.unauthenticated(connection.rejection or "expected a client certificate, found none")
        if self.cluster is not None and connection.identity.cluster != self.cluster:
            raise status.unauthenticated(f"expected a certificate of cluster {self.cluster}")
        found = names.role(connection.identity)
        if found is not self.role:
            raise status.denied(f"expected a certificate with role {self.role.value}, found {found.value}")

    def unknown_method(self, path: str) -> GRPCError:
        service = path.rpartition("/")[0].removeprefix("/")
        if service in self.other_services:
            return status.unimplemented(f"{service} is served on {self.other_services[service]}, not here")
        return status.unimplemented(f"no method {path[:200]} on this port")


def methods_of(services: Iterable[Any]) -> dict[str, const.Handler]:
    return {path: handler for service in services for path, handler in service.__mapping__().items()}


class Call(grpclib_server.Stream[Any, Any]):
    """A service's view of a call: receive and send messages."""

    _stream: Stream
    _is_first = True

    @property
    def rpc(self) -> str:
        """The name of the method in the proto."""
        return self._method_name.rpartition("/")[2]

    async def recv_message(self) -> Any:
        body = self._stream.buffer.message(self._stream.connection.limits.max_message)
        if body is None:
            body = await self._wait_message()
            if body is None:
                return None
        self._is_first = False
        try:
            return self._recv_type.FromString(body)
        except DecodeError as error:
            name = self._recv_type.DESCRIPTOR.name
            raise status.refusal(Status.INVALID_ARGUMENT, f"expected a {name}, found other bytes") from error

    async def _wait_message(self) -> bytes | None:
        """A stream may be silent forever, unless its one message is required; a message that has begun has a deadline."""
        limits = self._stream.connection.limits
        inbox = self._stream.buffer
        is_required = self._is_first and not self._cardinality.client_streaming
        try:
            async with asyncio.timeout(limits.first_message_seconds) if is_required else _NO_TIMEOUT:
                while not inbox.has_data:
                    if inbox.ended and is_required:
                        raise status.refusal(Status.INVALID_ARGUMENT, "expected one message, found none")
                    if inbox.ended:
                        return None
                    await inbox.wait_more()
            body = inbox.message(limits.max_message)
            if body is not None:
                return body
            began = asyncio.get_running_loop().time()
            async with asyncio.timeout(None) as deadline:
                while (body := inbox.message(limits.max_message)) is None:
                    if inbox.ended:
                        return None
                    deadline.reschedule(began + limits.message_seconds + inbox.message_size / limits.min_rate)
                    await inbox.wait_more()
                return body
        except TimeoutError:
            raise status.refusal(Status.DEADLINE_EXCEEDED, "the request message did not arrive in time") from None

    async def send_message(self, message: Any) -> None:
        if not self._send_initial_metadata_done:
            await self.send_initial_metadata()
        if self._send_message_done and not self._cardinality.server_streaming:
            raise RuntimeError(f"{self._method_name} answers with one message, not two")
        body = _CODEC.encode(message, self._send_type)
        await self._stream.send_data(b"\0" + len(body).to_bytes(4, "big") + body)
        self._send_message_done = True

    async def finish(self, error: GRPCError | None) -> None:
        if self._send_trailing_metadata_done or self._cancel_done or not self._stream.closable:
            return
        if error is None:
            await self.send_trailing_metadata(status=Status.OK)
        else:
            await self.send_trailing_metadata(status=error.status, status_message=error.message)


class Calls(AbstractHandler):
    """The calls of one connection."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.tasks: dict[Stream, asyncio.Task[None]] = {}
        self._is_rejected = False  # and reported: once per connection

    def accept(self, stream: Any, headers: Any, release_stream: Callable[[], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(stream, headers))
        self.tasks[stream] = task

        def done(_: "asyncio.Task[None]") -> None:
            self.tasks.pop(stream, None)
            release_stream()

        task.add_done_callback(done)

    def cancel(self, stream: Any) -> None:
        if stream in self.tasks:
            self.tasks[stream].cancel()

    def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()

    def _admit(self, connection: peer.Connection) -> None:
        try:
            self.table.admit(connection)
        except GRPCError as refusal:
            if not self._is_rejected:
                self._is_rejected = True
                self.table.on_rejected_peer(connection, refusal.message or "")
            raise

    async def _serve(self, stream: Stream, headers: Headers) -> None:
        try:
            await self._answer(stream, headers)
        except (StreamTerminatedError, ProtocolError):
            pass  # the peer is gone
        except Exception:
            log.exception("failed to answer a call")

    async def _answer(self, stream: Stream, headers: Headers) -> None:
        fields = dict(headers)
        path = fields.get(":path", "")
        method = self.table.methods.get(path)
        content, _, kind = fields.get("content-type", "").partition("+")
        if fields.get(":method") != "POST" or content != _CONTENT_TYPE or kind not in ("", "proto"):
            await stream.send_headers([(":status", "415")], end_stream=True)
            return
        signature = method or _NO_METHOD
        call = Call(
            stream,
            path,
            signature.cardinality,
            signature.request_type,
            signature.reply_type,
            codec=_CODEC,
            status_details_codec=None,
            dispatch=_NO_EVENTS,
            user_agent=fields.get("user-agent"),
        )
        await call.finish(await self._outcome(call, method, headers))

    async def _outcome(self, call: Call, method: const.Handler | None, headers: Headers) -> GRPCError | None:
        timeout = None
        try:
            self._admit(peer.connection_of(call))
            if method is None:
                return self.table.unknown_method(call._method_name)
            try:
                call.metadata = metadata.decode_metadata(headers)
                call.deadline = metadata.Deadline.from_headers(headers)
            except (ValueError, binascii.Error) as error:
                return status.invalid("metadata", str(error))
            seconds = None if call.deadline is None else min(call.deadline.time_remaining(), MAX_TIMEOUT_SECONDS)
            async with asyncio.timeout(seconds) as timeout:
                await method.func(call)
        except GRPCError as error:
            return error
        except (StreamTerminatedError, ProtocolError):
            raise
        except TimeoutError:
            if timeout is not None and timeout.expired():
                return status.refusal(Status.DEADLINE_EXCEEDED, "not finished within the caller's deadline")
            log.exception("failed to serve %s", call._method_name)
            return GRPCError(Status.INTERNAL, "internal error")
        except Exception:
            log.exception("failed to serve %s", call._method_name)
            return GRPCError(Status.INTERNAL, "internal error")
        finally:
            timeout = None  # it refers to the task: with the traceback of a cancelled call, that is a cycle
        if not call._send_message_done and not method.cardinality.server_streaming:
            log.error("failed to serve %s: no answer was sent", call._method_name)
            return GRPCError(Status.INTERNAL, "internal error")
        return None
