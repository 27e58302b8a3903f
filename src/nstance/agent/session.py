"""The life of a registered agent: one connection, five calls, for ever.

A stream that ends is opened again on its own; a connection that ends is made again, at the next server's address if it
did not serve. The health stream is the one that tells whether it serves. What touches the disk runs on one thread, in
order, so that a slow disk delays files and reports but never a notice, a ping or a goodbye.

The trap: every agent of a shard loses its server in the same moment. The server says beforehand over how long they
shall spread their return.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.agent import certificates, files, keys, keywork, plan
from nstance.agent.departure import Departure
from nstance.agent.folder import Folder, Unusable
from nstance.agent.health import Looker
from nstance.agent.identity import Certified, IdentityFolder
from nstance.agent.onreceive import OnReceive
from nstance.agent.outbox import Outbox
from nstance.agent.settings import Address, Settings
from nstance.agent.version import VERSION
from nstance.clock import Chance, Clock
from nstance.v1 import agent_grpc, agent_pb2, registration_pb2
from nstance.wire import status, tls
from nstance.wire.call import call
from nstance.wire.channel import Channel

CALL_SECONDS = 30.0
FIRST_ANSWER_SECONDS = 15.0  # from opening the health stream
STABLE_SECONDS = 10.0  # a connection that served this long is not a failure when it ends
RENEWAL_CHECK_SECONDS = 3600.0  # wall clocks jump: look again at least this often
GOODBYE_SECONDS = 0.8  # of the two seconds that a stop may take

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Lost(Exception):
    """The connection is of no more use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a session works with. The disk is an executor with one thread."""

    settings: Settings
    identity: IdentityFolder
    received: files.ReceivedFiles
    keys: Folder
    looker: Looker
    on_receive: OnReceive
    disk: Executor
    make: keywork.Maker
    clock: Clock
    chance: Chance


class Session:
    def __init__(self, parts: Parts, certified: Certified) -> None:
        self._parts = parts
        self._certified = certified
        self._shard = parts.identity.shard()
        self._key_pem = parts.identity.key_pem()
        self._ca_pem = parts.identity.ca_pem()
        self._outbox = Outbox()
        self._boot = f"{parts.chance.bits(128):032x}"
        self._sequence = 0
        self._interval = parts.settings.report_interval
        self._spread = 0.0
        self._skew = 0.0  # of the server's clock against ours
        self._problems: dict[str, str] = {}
        self._report_wanted = False  # before its time
        self._nudged = asyncio.Event()  # the time of the next report has changed
        self._served = False  # the current connection's health stream has been answered
        self._open = False  # there is a health stream
        self._closed = asyncio.Event()  # the server has ended the health stream after a goodbye
        self._last_complaint = ""

    async def run(self) -> None:
        """Until a goodbye was heard."""
        clock, addresses = self._parts.clock, self._parts.settings.agent
        tries = turn = 0
        while True:
            began, self._served = clock.monotonic(), False
            problem = await self._connect(addresses[turn % len(addresses)])
            if self._closed.is_set():
                return
            if self._served and clock.monotonic() - began >= STABLE_SECONDS:
                tries = 0
                wait = plan.reconnect(0, self._spread, self._parts.chance)
            else:
                tries, turn = tries + 1, turn + 1
                rounds, rest = divmod(tries, len(addresses))
                wait = 0.0 if rest else plan.reconnect(rounds, self._spread, self._parts.chance)
            self._complain(problem, wait)
            await clock.sleep(wait)

    def notice(self, kind: "agent_pb2.Notice.Kind.ValueType", *, deadline_ms: int = 0, detail: str = "") -> None:
        """Sent at once, and again on each new connection."""
        self._outbox.notice(agent_pb2.Notice(kind=kind, deadline_unix_ms=deadline_ms, detail=detail))

    async def leave(self, departure: Departure) -> None:
        """Say goodbye, if there is anybody to say it to, and wait for a moment until it is heard."""
        if departure is Departure.SHUTDOWN:
            self.notice(agent_pb2.Notice.SHUTDOWN)
            self._outbox.goodbye(agent_pb2.Goodbye.SHUTDOWN)
        else:
            self._outbox.goodbye(agent_pb2.Goodbye.RESTART)
        if self._open:
            try:
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._closed.wait()
            except TimeoutError:
                log.warning("the server did not confirm the goodbye")

    async def _connect(self, address: Address) -> str:
        """One connection from its beginning to its end; returns why it ended."""
        channel = Channel(
            str(address),
            context=tls.client_context(ca_pem=self._ca_pem, certificate_pem=self._certified.pem, key_pem=self._key_pem),
            expect_cluster=self._certified.who.cluster,
            expect_shard=self._shard,
            clock=self._parts.clock,
            identify=certificates.identify,
        )
        stub = agent_grpc.AgentServiceStub(channel)
        streams = (self._health, self._key_requests, self._files)
        tasks = [asyncio.create_task(self._keep(channel, stub, stream)) for stream in streams]
        tasks += [asyncio.create_task(self._report()), asyncio.create_task(self._renew(stub))]
        # No task group: on Python 3.11 one that has an error to tell forgets that it was cancelled from outside.
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            channel.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        problem = ""
        for task in done:
            try:
                task.result()
            except _Lost as lost:
                problem = f"{address}: {lost}"
        return problem

    async def _keep(
        self,
        channel: Channel,
        stub: agent_grpc.AgentServiceStub,
        stream: Callable[[agent_grpc.AgentServiceStub], Awaitable[None]],
    ) -> None:
        """Open a stream, and again whenever it ends, as long as the connection stands."""
        failures = 0
        while True:
            began = self._parts.clock.monotonic()
            try:
                await stream(stub)
                problem = "ended by the server"
            except _Lost:
                raise
            except GRPCError as error:
                problem = status.explain(error)
                if error.status is Status.UNAVAILABLE and stream == self._health:
                    raise _Lost(problem) from error  # it does not lead; perhaps the next one does
            except (OSError, StreamTerminatedError, ProtocolError) as error:
                problem = status.explain(error)
            except Exception as error:
                # A bug or a message nobody foresaw must cost one stream, not the instance's voice.
                log.exception("a stream failed unexpectedly")
                problem = status.explain(error)
            if not channel.connected or self._closed.is_set():
                raise _Lost(problem)
            failures = 1 if self._parts.clock.monotonic() - began >= STABLE_SECONDS else failures + 1
            log.debug("a stream ended", extra={"stream": stream.__name__, "reason": problem})
            await self._parts.clock.sleep(plan.backoff(failures, self._parts.chance))

    async def _health(self, stub: agent_grpc.AgentServiceStub) -> None:
        async with stub.SubmitHealthReport.open() as stream:
            await stream.send_request()
            self._outbox.reopen()
            self._want_report()
            self._open = True
            sender = asyncio.create_task(self._send(stream))
            try:
                async with asyncio.timeout(FIRST_ANSWER_SECONDS) as patience:
                    while (answer := await stream.recv_message()) is not None:
                        patience.reschedule(None)
                        self._answer(answer)
            except TimeoutError as error:
                raise _Lost("it answers no health report") from error
            finally:
                self._open = False
                sender.cancel()
                await asyncio.wait({sender})
            if not sender.cancelled() and sender.exception() is None:
                self._closed.set()

    async def _send(self, stream: Any) -> None:
        while True:
            message = await self._outbox.next()
            last = message.WhichOneof("kind") == "goodbye"
            await stream.send_message(message, end=last)
            if last:
                return

    def _answer(self, answer: agent_pb2.HealthAnswer) -> None:
        if not self._served:
            self._served = True
            self._last_complaint = ""
            log.info("connected", extra={"instance": self._certified.who.id})
        if answer.server_time_unix_ms:
            self._skew = answer.server_time_unix_ms / 1000 - self._parts.clock.wall()
        interval = plan.interval(self._parts.settings.report_interval, answer.report_interval_ms / 1000)
        if interval != self._interval:
            self._interval = interval
            self._nudged.set()
        self._spread = answer.reconnect_spread_ms / 1000

    async def _report(self) -> None:
        """Make reports: when asked to, and by interval."""
        while True:
            await self._report_due()
            config_hash, states, vitals = await self._on_disk(self._look)
            self._sequence += 1
            self._outbox.report(
                agent_pb2.HealthReport(
                    boot_id=self._boot,
                    sequence=self._sequence,
                    version=VERSION,
                    uptime_seconds=vitals.uptime_seconds,
                    cpu_percent=vitals.cpu_percent,
                    memory_percent=vitals.memory_percent,
                    disk_percent=vitals.disk_percent,
                    load1=vitals.load1,
                    config_hash=config_hash,
                    files=_file_states(states),
                    files_error="; ".join(self._problems.values()),
                    instance_id=self._certified.who.id,
                )
            )

    async def _report_due(self) -> None:
        while not self._report_wanted:
            self._nudged.clear()
            try:
                async with asyncio.timeout(plan.until_report(self._interval, self._parts.chance)):
                    await self._nudged.wait()
            except TimeoutError:
                return
        self._report_wanted = False

    def _want_report(self) -> None:
        self._report_wanted = True
        self._nudged.set()

    def _look(self) -> tuple[str, list[files.FileState], Any]:
        return *self._states(), self._parts.looker.look()

    def _states(self) -> tuple[str, list[files.FileState]]:
        try:
            return self._parts.received.states()
        except (OSError, Unusable) as error:
            self._problems["states"] = f"cannot look at the files: {error}"
            return "", []

    async def _key_requests(self, stub: agent_grpc.AgentServiceStub) -> None:
        async with stub.ReceiveKeyRequests.open() as stream:
            await stream.send_message(agent_pb2.ReceiveKeyRequestsRequest(), end=True)
            while (request := await stream.recv_message()) is not None:
                try:
                    pairs = await self._on_disk(keys.ensure, list(request.names), self._parts.keys, self._parts.make)
                except keys.Refused as error:
                    self._trouble("keys", str(error))
                    continue
                self._trouble("keys", None)
                public = [agent_pb2.PublicKey(name=pair.name, pem=pair.pem) for pair in pairs]
                submission = agent_pb2.SubmitPublicKeysRequest(keys=public)
                await call(stub.SubmitPublicKeys, submission, timeout=CALL_SECONDS)
                log.debug("public keys submitted", extra={"keys": len(public)})

    async def _files(self, stub: agent_grpc.AgentServiceStub) -> None:
        config_hash, states = await self._on_disk(self._states)
        incoming: files.Incoming | None = None
        async with stub.ReceiveFiles.open() as stream:
            request = agent_pb2.ReceiveFilesRequest(config_hash=config_hash, files=_file_states(states))
            await stream.send_message(request, end=True)
            while (message := await stream.recv_message()) is not None:
                kind = message.WhichOneof("kind")
                if incoming is None:
                    incoming = await self._on_disk(self._parts.received.begin)
                if kind == "file":
                    await self._on_disk(incoming.add, message.file.name, message.file.content)
                elif kind == "commit":
                    await self._commit(incoming, message.commit)
                    incoming = None

    async def _commit(self, incoming: files.Incoming, commit: agent_pb2.Commit) -> None:
        try:
            await self._on_disk(self._parts.on_receive.before_commit)
            changed = await self._on_disk(incoming.commit, commit.config_hash, commit.files)
        except (files.Refused, OSError) as error:
            self._trouble("files", str(error))
            return
        self._trouble("files", None)
        if changed:
            log.info("files put in place", extra={"files": commit.files, "config_hash": commit.config_hash})
            self._parts.on_receive.want()
        self._want_report()

    async def _renew(self, stub: agent_grpc.AgentServiceStub) -> None:
        """At two thirds of the certificate's life by the server's clock, with the key as it is."""
        clock, failures = self._parts.clock, 0
        while True:
            due = plan.renewal_due(self._certified.not_before, self._certified.not_after)
            wait = due - (clock.wall() + self._skew)
            if wait > 0 or not self._served:
                await clock.sleep(min(max(wait, 1.0), RENEWAL_CHECK_SECONDS))
                continue
            try:
                renewed = await call(
                    stub.RenewCertificate, registration_pb2.RenewCertificateRequest(), timeout=CALL_SECONDS
                )
                self._certified, self._ca_pem = await self._on_disk(self._keep_certificate, renewed)
                failures = 0
                log.info("certificate renewed")
            except (GRPCError, OSError, Unusable) as error:
                failures += 1
                log.error("cannot renew the certificate", extra={"reason": status.explain(error)})
                await clock.sleep(plan.LAST_BACKOFF + plan.backoff(failures, self._parts.chance))

    def _keep_certificate(self, renewed: registration_pb2.RegisterResponse) -> tuple[Certified, str]:
        identity = self._parts.identity
        certified = identity.accept(renewed.certificate_pem, renewed.ca_bundle_pem)
        return certified, identity.ca_pem()

    def _trouble(self, where: str, problem: str | None) -> None:
        """Reported at once when it comes and when it goes."""
        if problem is None:
            if self._problems.pop(where, None) is not None:
                self._want_report()
        else:
            log.error("cannot do as the server asks", extra={"what": where, "reason": problem})
            self._problems[where] = problem
            self._want_report()

    def _complain(self, problem: str, wait: float) -> None:
        """Once for each new reason; the rest is for those who look closer."""
        level = logging.DEBUG if problem == self._last_complaint else logging.WARNING
        self._last_complaint = problem
        log.log(level, "no connection", extra={"reason": problem, "next_try_seconds": round(wait, 1)})

    async def _on_disk(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._parts.disk, work, *args)


def _file_states(states: list[files.FileState]) -> list[agent_pb2.FileState]:
    return [
        agent_pb2.FileState(name=state.name, sha256=state.sha256, serial=state.serial, expires_unix=state.expires)
        for state in states
    ]
