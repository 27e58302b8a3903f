"""A client of one shard's operator API, with an identity from a directory.

A call that is rejected or lost raises `ShardError` with a message and a gRPC code. The trap: a lost call may have been
applied. A channel reconnects with the next call, so a client may live as long as a program; its certificate is renewed
after two thirds of its lifetime.
"""

import asyncio
import copy
import os
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.admin import errors, files, output
from nstance.clock import Clock
from nstance.model.ids import ShardId, TenantId
from nstance.model.roles import Role
from nstance.pki import names
from nstance.v1 import operator_grpc, operator_pb2
from nstance.wire import credentials, status, tls
from nstance.wire.call import PERSON_HEADER, ROLE_HEADER, TENANT_HEADER, call
from nstance.wire.channel import Channel, ExpectedServer
from nstance.wire.credentials import Credentials
from nstance.wire.limits import MIB, Limits

CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
MAX_FILE_BYTES = 1 << 20
SNAPSHOT_MESSAGE_SECONDS = 15.0  # between two messages of a snapshot
READ_PREFIXES = ("Get", "List", "Plan")  # of calls that change nothing
MAYBE_APPLIED = "the change may have been applied: check before you try again"
NO_LEADER = "check --servers, and that the shard has a leader: `/health` of a server says what it waits for"
# An unresponsive server is noticed within five seconds. The wide window lets a snapshot of thousands of instances flow.
WATCH_LIMITS = Limits(ping_after=2.0, pong_within=3.0, window=MIB)
REGISTER = "create one with `nstance-admin cluster register-operator --output-dir`"


class ShardError(errors.CommandError):
    """A shard rejected a call, or did not answer. `code` is gRPC's."""

    def __init__(self, message: str, code: Status) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Identity:
    directory: Path
    credentials: Credentials

    @property
    def who(self) -> names.Operator:
        return self.credentials.who

    @property
    def expires(self) -> float:
        return self.credentials.expires

    @property
    def renew_at(self) -> float:
        return self.credentials.renew_at


def load(directory: Path, *, now: float) -> Identity:
    """Raises CommandError with what to do."""
    if not directory.is_dir():
        raise errors.CommandError(f"there is no identity in {directory}; {REGISTER}, or set --identity-dir")
    _check_owner(directory)
    content = {}
    for name in (CERTIFICATE, KEY, CA):
        try:
            with (directory / name).open("rb") as file:
                content[name] = file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            raise errors.CommandError(f"{directory / name} is missing; {REGISTER} {directory}") from None
    try:
        found = credentials.read(content[CERTIFICATE], content[KEY], content[CA])
    except tls.TlsError as problem:
        raise errors.CommandError(f"the identity in {directory} cannot be used: {problem}") from problem
    except ValueError as problem:
        raise errors.CommandError(f"{directory / CERTIFICATE} is not an operator's certificate: {problem}") from problem
    if found.expires <= now:
        raise errors.CommandError(
            f"{directory / CERTIFICATE} expired at {output.timestamp(found.expires)}; {REGISTER} in another directory"
        )
    return Identity(directory, found)


def _check_owner(directory: Path) -> None:
    """In the shared directory for temporary files, another user may have created it."""
    owner = directory.stat().st_uid
    if directory.parent == Path(tempfile.gettempdir()) and owner not in (os.geteuid(), 0):
        raise errors.CommandError(
            f"{directory} belongs to another user (uid {owner}); set --identity-dir to a directory of your own"
        )


@dataclass(slots=True)
class _Link:
    """What all views of a client share: its certificate may be renewed while they are in use."""

    identity: Identity
    channel: Channel
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Client:
    def __init__(
        self, shard: ShardId, addresses: tuple[str, ...], *, identity: Identity, timeout: float, clock: Clock
    ) -> None:
        self.shard = shard
        self._addresses = addresses
        self._timeout = timeout
        self._clock = clock
        self._metadata: dict[str, str] = {}
        self._link = _Link(identity, self._connect(identity))

    @property
    def identity(self) -> Identity:
        return self._link.identity

    def _connect(self, identity: Identity) -> Channel:
        return Channel(
            list(self._addresses),
            context=identity.credentials.context(),
            expect=ExpectedServer(identity.who.cluster, self.shard),
            clock=self._clock,
            connect_seconds=min(3.0, self._timeout),
            limits=WATCH_LIMITS,
        )

    def acting_for(self, person: str, *, role: Role | None = None) -> Self:
        """The same client, whose calls name a person in the history and may do no more than that person."""
        view = copy.copy(self)
        view._metadata = {**self._metadata, PERSON_HEADER: person} | ({ROLE_HEADER: role.value} if role else {})
        return view

    def in_tenant(self, tenant: TenantId) -> Self:
        """The same client, whose calls are about another tenant. Only the role admin may do that."""
        view = copy.copy(self)
        view._metadata = {**self._metadata, TENANT_HEADER: tenant}
        return view

    @property
    def tenant(self) -> TenantId:
        return TenantId(self._metadata.get(TENANT_HEADER, self.identity.who.tenant))

    async def call(self, rpc: str, request: Any = None, /, **fields: Any) -> Any:
        """`rpc` is the name in the proto; the request is an object or its fields. Raises ShardError."""
        method = getattr(operator_grpc.OperatorServiceStub(self._link.channel), rpc)
        message = request or method.request_type(**fields)
        try:
            return await call(method, message, timeout=self._timeout, metadata=self._metadata or None)
        except GRPCError as error:
            raise ShardError(status.explain(error), error.status) from error
        except status.UnreachableError as error:
            changes = not rpc.startswith(READ_PREFIXES) and not getattr(message, "dry_run", False)
            sent = isinstance(error.__cause__, TimeoutError | StreamTerminatedError | GRPCError)
            advice = MAYBE_APPLIED if changes and sent else NO_LEADER
            reason = status.explain(error)
            if not any(address in reason for address in self._addresses):
                reason = f"{' or '.join(self._addresses)}: {reason}"
            raise ShardError(f"no answer: {reason}; {advice}", Status.UNAVAILABLE) from error

    async def watch(self, **kinds: bool) -> AsyncGenerator[Any, None]:
        """The messages of a Watch, first a snapshot. Raises ShardError when it ends, whatever the reason."""
        request = operator_pb2.WatchRequest(**kinds)
        try:
            async with operator_grpc.OperatorServiceStub(self._link.channel).Watch.open(
                metadata=self._metadata or None
            ) as stream:
                async with asyncio.timeout(SNAPSHOT_MESSAGE_SECONDS) as deadline:
                    await stream.send_message(request, end=True)
                    while (message := await stream.recv_message()) is not None:
                        if message.WhichOneof("kind") == "snapshot_end":
                            deadline.reschedule(None)  # from here on the pings of the connection are the deadline
                        elif deadline.when() is not None:
                            deadline.reschedule(asyncio.get_running_loop().time() + SNAPSHOT_MESSAGE_SECONDS)
                        yield message
                await stream.recv_trailing_metadata()
        except TimeoutError as error:
            raise ShardError(f"no message for {SNAPSHOT_MESSAGE_SECONDS:g} s", Status.UNAVAILABLE) from error
        except GRPCError as error:
            raise ShardError(status.explain(error), error.status) from error
        except (OSError, StreamTerminatedError, ProtocolError) as error:
            raise ShardError(status.explain(error), Status.UNAVAILABLE) from error
        raise ShardError("the server ended the watch", Status.UNAVAILABLE)

    async def renew_if_due(self) -> None:
        """A failure is printed and retried next time: a third of the lifetime is left."""
        if self._clock.wall() < self.identity.renew_at:
            return
        async with self._link.renewing:
            if self._clock.wall() < self.identity.renew_at:
                return
            try:
                fresh = load(self.identity.directory, now=self._clock.wall())  # another process may have renewed it
                if self._clock.wall() >= fresh.renew_at:
                    await self._renew()
                    fresh = load(self.identity.directory, now=self._clock.wall())
            except (errors.CommandError, OSError) as problem:
                output.note(
                    f"warning: failed to renew the certificate in {self.identity.directory}, which expires at "
                    f"{output.timestamp(self.identity.expires)}: {errors.explain(problem)}"
                )
                return
            self._link.channel.close()
            self._link.identity, self._link.channel = fresh, self._connect(fresh)

    async def _renew(self) -> None:
        answer = await self.call("RenewCertificate")
        directory = self.identity.directory
        files.write(directory / CA, answer.ca_bundle_pem.encode(), mode=files.PUBLIC)
        files.write(directory / CERTIFICATE, answer.certificate_pem.encode(), mode=files.PUBLIC)

    def close(self) -> None:
        self._link.channel.close()
