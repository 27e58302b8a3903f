"""One shard's operator API, as the identity in a directory.

A call is answered, refused or lost; the last two come back as one `Refusal` with a sentence and a code. The trap: a lost
call may have been carried out. A channel reconnects by itself with the next call, so a client may live as long as a
program does; its certificate is renewed when two thirds of its life are over.
"""

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from nstance.admin import failures, files, output
from nstance.clock import Clock
from nstance.model.ids import ShardId
from nstance.pki import names
from nstance.v1 import operator_grpc
from nstance.wire import credentials, status, tls
from nstance.wire.call import call
from nstance.wire.channel import Channel
from nstance.wire.credentials import Credentials

CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
MAX_FILE = 1 << 20
READING = ("Get", "List", "Plan")  # calls that begin so change nothing
MAYBE = "it may have been done: look before you try again"
REGISTER = "make one with `nstance-admin cluster register-operator --output-dir`"


class Refusal(failures.Refused):
    """A shard said no, or nothing. `code` is gRPC's."""

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
    """Raises Refused with what to do."""
    if not directory.is_dir():
        raise failures.Refused(f"there is no identity in {directory}; {REGISTER}, or give its --identity-dir")
    _check_owner(directory)
    content = {}
    for name in (CERTIFICATE, KEY, CA):
        try:
            with (directory / name).open("rb") as file:
                content[name] = file.read(MAX_FILE)
        except FileNotFoundError:
            raise failures.Refused(f"{directory / name} is missing; {REGISTER} {directory}") from None
    try:
        found = credentials.read(content[CERTIFICATE], content[KEY], content[CA])
    except tls.TlsError as problem:
        raise failures.Refused(f"the identity in {directory} cannot be used: {problem}") from problem
    except ValueError as problem:
        raise failures.Refused(f"{directory / CERTIFICATE} is no operator's certificate: {problem}") from problem
    if found.expires <= now:
        raise failures.Refused(
            f"{directory / CERTIFICATE} expired at {output.when(found.expires)}; {REGISTER} and another directory"
        )
    return Identity(directory, found)


def _check_owner(directory: Path) -> None:
    """Where everybody may make directories, somebody else may have made this one."""
    owner = directory.stat().st_uid
    if directory.parent == Path(tempfile.gettempdir()) and owner not in (os.geteuid(), 0):
        raise failures.Refused(f"{directory} belongs to another user (uid {owner}); give your own --identity-dir")


def _reason(lost: status.UnreachableError, addresses: tuple[str, ...]) -> str:
    """With the address."""
    text = status.explain(lost)
    return text if any(each in text for each in addresses) else f"{' or '.join(addresses)}: {text}"


class Client:
    def __init__(
        self, shard: ShardId, addresses: tuple[str, ...], *, identity: Identity, timeout: float, clock: Clock
    ) -> None:
        self.shard = shard
        self.identity = identity
        self._addresses = addresses
        self._timeout = timeout
        self._clock = clock
        self._renewing = asyncio.Lock()
        self._channel = self._connect(identity)

    def _connect(self, identity: Identity) -> Channel:
        return Channel(
            list(self._addresses),
            context=identity.credentials.context(),
            expect_cluster=identity.who.cluster,
            expect_shard=self.shard,
            clock=self._clock,
            connect_seconds=min(3.0, self._timeout),
        )

    async def call(self, rpc: str, request: Any = None, /, **fields: Any) -> Any:
        """Calls are spelled as in the proto, their requests given whole or by their fields. Raises Refusal."""
        method = getattr(operator_grpc.OperatorServiceStub(self._channel), rpc)
        asked = request or method.request_type(**fields)
        try:
            return await call(method, asked, timeout=self._timeout)
        except GRPCError as refusal:
            raise Refusal(status.explain(refusal), refusal.status) from refusal
        except status.UnreachableError as lost:
            changes = not rpc.startswith(READING) and not getattr(asked, "dry_run", False)
            sent = isinstance(lost.__cause__, TimeoutError | StreamTerminatedError | GRPCError)
            advice = MAYBE if changes and sent else "check --servers, and that a server of the shard runs and leads"
            raise Refusal(f"no answer: {_reason(lost, self._addresses)}; {advice}", Status.UNAVAILABLE) from lost

    async def renew_if_due(self) -> None:
        """A renewal that fails is told and tried again next time: there is a third of its life left."""
        if self._clock.wall() < self.identity.renew_at:
            return
        async with self._renewing:
            if self._clock.wall() < self.identity.renew_at:
                return
            try:
                fresh = load(self.identity.directory, now=self._clock.wall())  # another process may have done it
                if self._clock.wall() >= fresh.renew_at:
                    await self._renew()
                    fresh = load(self.identity.directory, now=self._clock.wall())
            except (failures.Refused, OSError) as problem:
                output.note(
                    f"the certificate in {self.identity.directory} expires at {output.when(self.identity.expires)} "
                    f"and could not be renewed: {failures.explain(problem)}"
                )
                return
            self._channel.close()
            self.identity, self._channel = fresh, self._connect(fresh)

    async def _renew(self) -> None:
        answer = await self.call("RenewCertificate")
        directory = self.identity.directory
        files.write(directory / CA, answer.ca_bundle_pem.encode(), mode=files.PUBLIC)
        files.write(directory / CERTIFICATE, answer.certificate_pem.encode(), mode=files.PUBLIC)

    def close(self) -> None:
        self._channel.close()
