"""From a request's headers to the service's method, and from what it raises to a status.

A service's refusal (a GRPCError) passes as it is. Anything else it raises is a bug: logged once with its traceback here,
and only the word "internal error" leaves the process. The trap: a call can be cancelled before its first line ran, so
what must happen in any case hangs on the task, not in its body.
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
from nstance.wire.transport import Stream

log = logging.getLogger("nstance.wire")

LONGEST = 86_400.0  # seconds; what a client says beyond is taken as this

_CONTENT = "application/grpc"
_CODEC = ProtoCodec()
_NO_EVENTS = _DispatchServerEvents()
_NOWHERE: Any = const.Handler(lambda stream: None, const.Cardinality.UNARY_UNARY, None, None)  # for refusals
_NO_TIMEOUT: AbstractAsyncContextManager[None] = nullcontext()

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What one port serves, and for whom."""

    methods: Mapping[str, const.Handler]
    limits: Limits
    other_services: Mapping[str, str] = field(default_factory=dict)  # service name → where it is served
    role: names.Role | None = None
    cluster: str | None = None
    unwelcome: Callable[[peer.Connection, str], None] = lambda connection, reason: None  # told of whom is refused

    def admit(self, connection: peer.Connection) -> None:
        """Raises if this peer has no business on this port."""
        if self.role is None:
            return
        if connection.identity is None:
            raise status.unauthenticated(connection.refusal or "expected a client certificate, found none")
        if self.cluster is not None and connection.identity.cluster != self.cluster:
            raise status.unauthenticated(f"expected a certificate of cluster {self.cluster}")
        found = names.role(connection.identity)
        if found is not self.role:
            raise status.denied(f"expected a certificate with role {self.role.value}, found {found.value}")

    def absent(self, path: str) -> GRPCError:
        service = path.rpartition("/")[0].removeprefix("/")
        if service in self.other_services:
            return status.unimplemented(f"{service} is served on {self.other_services[service]}, not here")
        return status.unimplemented(f"there is no method {path[:200]} here")


def table_of(services: Iterable[Any]) -> dict[str, const.Handler]:
    return {path: handler for service in services for path, handler in service.__mapping__().items()}


class Call(grpclib_server.Stream[Any, Any]):
    """What a service gets: receive messages, send messages."""

    _stream: Stream
    _first = True

    async def recv_message(self) -> Any:
        body = self._stream.buffer.message(self._stream.connection.limits.max_message)
        if body is None:
            body = await self._awaited_message()
            if body is None:
                return None
        self._first = False
        try:
            return self._recv_type.FromString(body)
        except DecodeError as error:
            name = self._recv_type.DESCRIPTOR.name
            raise status.refusal(Status.INVALID_ARGUMENT, f"expected a {name}, found bytes that are none") from error

    async def _awaited_message(self) -> bytes | None:
        """A stream may be quiet for ever, unless its one message is owed; a message that has begun must go on."""
        limits = self._stream.connection.limits
        inbox = self._stream.buffer
        owed = self._first and not self._cardinality.client_streaming
        try:
            async with asyncio.timeout(limits.first_message_seconds) if owed else _NO_TIMEOUT:
                while not inbox.begun:
                    if inbox.ended and owed:
                        raise status.refusal(Status.INVALID_ARGUMENT, "expected one message, found none")
                    if inbox.ended:
                        return None
                    await inbox.more()
            body = inbox.message(limits.max_message)
            if body is not None:
                return body
            began = asyncio.get_running_loop().time()
            async with asyncio.timeout(None) as patience:
                while (body := inbox.message(limits.max_message)) is None:
                    if inbox.ended:
                        return None
                    patience.reschedule(began + limits.message_seconds + inbox.announced / limits.min_rate)
                    await inbox.more()
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
        self._refused = False  # and somebody was told: once for a connection is enough

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
            if not self._refused:
                self._refused = True
                self.table.unwelcome(connection, refusal.message or "")
            raise

    async def _serve(self, stream: Stream, headers: Headers) -> None:
        try:
            await self._answer(stream, headers)
        except (StreamTerminatedError, ProtocolError):
            pass  # the peer is gone, there is nobody to tell
        except Exception:
            log.exception("answering a call failed")

    async def _answer(self, stream: Stream, headers: Headers) -> None:
        given = dict(headers)
        path = given.get(":path", "")
        method = self.table.methods.get(path)
        content, _, kind = given.get("content-type", "").partition("+")
        if given.get(":method") != "POST" or content != _CONTENT or kind not in ("", "proto"):
            await stream.send_headers([(":status", "415")], end_stream=True)
            return
        shape = method or _NOWHERE
        call = Call(
            stream,
            path,
            shape.cardinality,
            shape.request_type,
            shape.reply_type,
            codec=_CODEC,
            status_details_codec=None,
            dispatch=_NO_EVENTS,
            user_agent=given.get("user-agent"),
        )
        await call.finish(await self._outcome(call, method, headers))

    async def _outcome(self, call: Call, method: const.Handler | None, headers: Headers) -> GRPCError | None:
        timeout = None
        try:
            self._admit(peer.connection_of(call))
            if method is None:
                return self.table.absent(call._method_name)
            try:
                call.metadata = metadata.decode_metadata(headers)
                call.deadline = metadata.Deadline.from_headers(headers)
            except (ValueError, binascii.Error) as error:
                return status.invalid("metadata", str(error))
            seconds = None if call.deadline is None else min(call.deadline.time_remaining(), LONGEST)
            async with asyncio.timeout(seconds) as timeout:
                await method.func(call)
        except GRPCError as error:
            return error
        except (StreamTerminatedError, ProtocolError):
            raise
        except TimeoutError:
            if timeout is not None and timeout.expired():
                return status.refusal(Status.DEADLINE_EXCEEDED, "not finished within the caller's deadline")
            log.exception("%s failed", call._method_name)
            return GRPCError(Status.INTERNAL, "internal error")
        except Exception:
            log.exception("%s failed", call._method_name)
            return GRPCError(Status.INTERNAL, "internal error")
        finally:
            timeout = None  # it knows the task: with the traceback of a cancelled call, that is a cycle
        if not call._send_message_done and not method.cardinality.server_streaming:
            log.error("%s ended without an answer", call._method_name)
            return GRPCError(Status.INTERNAL, "internal error")
        return None
