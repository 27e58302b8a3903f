"""A registered agent's connection to its server: three streams, health reports and renewal, until it stops.

A stream that ends is opened again by itself. A connection that ends is replaced, at the next server's address if the
server did not answer. The health stream shows whether a server answers; a slow disk may delay the reports on it, but
never a notice or a goodbye. The trap: all agents of a shard lose their server in the same moment, so the server tells
them beforehand over how long to spread their reconnects.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.agent import timing
from nstance.agent.credentials import certificates
from nstance.agent.credentials.identity import StoredCertificate
from nstance.agent.outbox import Outbox
from nstance.agent.server_calls import AgentParts, ServerCalls
from nstance.agent.settings import Address
from nstance.agent.stop_reason import StopReason
from nstance.tasks import background
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import status, tls
from nstance.wire.channel import Channel, ExpectedServer

FIRST_ANSWER_SECONDS = 15.0  # from opening the health stream
STABLE_SECONDS = 10.0  # a connection that lasted this long is not a failure when it ends
MAX_PROBLEMS = 64  # that are remembered, so that each is logged once

log = logging.getLogger(__name__)


class _ConnectionLostError(Exception):
    """The connection cannot be used any more."""


class Session:
    def __init__(self, parts: AgentParts, certificate: StoredCertificate) -> None:
        self._parts = parts
        self._calls = ServerCalls(parts, certificate, request_report=self._request_report)
        self._shard = parts.identity.shard()
        self._key_pem = parts.identity.key_pem()
        self._outbox = Outbox()
        self._interval = parts.settings.report_interval
        self._spread = 0.0
        self._is_report_requested = False
        self._schedule_changed = asyncio.Event()  # the time of the next report has changed
        self._is_answered = False  # the current connection's health stream has received an answer
        self._is_open = False  # there is a health stream
        self._goodbye_confirmed = asyncio.Event()  # the server has ended the health stream after a goodbye
        self._problems: set[tuple[str, str]] = set()  # by address, since the last answer of a server
        self._address = ""  # of the current connection

    async def run(self) -> None:
        """Until a goodbye was confirmed."""
        clock, addresses = self._parts.clock, self._parts.settings.agent
        attempts = turn = 0
        while True:
            began, self._is_answered = clock.monotonic(), False
            problem = await self._connect(addresses[turn % len(addresses)])
            if self._goodbye_confirmed.is_set():
                return
            if self._is_answered and clock.monotonic() - began >= STABLE_SECONDS:
                attempts = 0
                wait = timing.reconnect_delay(0, self._spread, self._parts.rng)
            else:
                attempts, turn = attempts + 1, turn + 1
                rounds, rest = divmod(attempts, len(addresses))
                wait = 0.0 if rest else timing.reconnect_delay(rounds, self._spread, self._parts.rng)
            self._log_problem(problem, wait)
            await clock.sleep(wait)

    def send_notice(self, notice: agent_pb2.Notice) -> None:
        """Sent at once, and again on each new connection."""
        self._parts.metrics.notices[notice.kind] += 1
        self._outbox.add_notice(self._parts.traces.noticed(notice))

    async def leave(self, reason: StopReason) -> None:
        """Say goodbye if there is a stream, and wait a moment for the confirmation."""
        if reason is StopReason.SHUTDOWN:
            self.send_notice(agent_pb2.Notice(kind=agent_pb2.Notice.SHUTDOWN))
            self._outbox.set_goodbye(agent_pb2.Goodbye.SHUTDOWN)
        else:
            self._outbox.set_goodbye(agent_pb2.Goodbye.RESTART)
        wait = self._parts.settings.waits.goodbye
        if self._is_open and not await background.is_set_within(self._goodbye_confirmed, wait):
            log.warning("goodbye not confirmed by the server")

    async def _connect(self, address: Address) -> str:
        """One connection from its beginning to its end; returns why it ended."""
        calls, self._address = self._calls, str(address)
        channel = Channel(
            str(address),
            context=tls.client_context(
                ca_pem=calls.ca_pem, certificate_pem=calls.certificate.pem, key_pem=self._key_pem
            ),
            expect=ExpectedServer(calls.certificate.identity.cluster, self._shard, certificates.identify),
            clock=self._parts.clock,
        )
        stub = agent_grpc.AgentServiceStub(channel)
        streams = (self._exchange_health, calls.receive_key_requests, calls.receive_files)
        work = [self._keep_open(channel, stub, stream) for stream in streams]
        # No task group: on Python 3.11 a failing task group forgets that it was cancelled from outside.
        async with background.running([*work, self._send_reports(), calls.renew_certificate(stub)]) as tasks:
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                channel.close()
        problem = ""
        for task in done:
            try:
                task.result()
            except _ConnectionLostError as lost:
                problem = str(lost).removeprefix(f"{address}: ")
        return problem

    async def _keep_open(
        self,
        channel: Channel,
        stub: agent_grpc.AgentServiceStub,
        stream: Callable[[agent_grpc.AgentServiceStub], Awaitable[None]],
    ) -> None:
        """Open a stream, and again whenever it ends, as long as the connection lasts."""
        failures = 0
        while True:
            began = self._parts.clock.monotonic()
            try:
                await stream(stub)
                problem = "ended by the server"
            except _ConnectionLostError:
                raise
            except GRPCError as error:
                problem = status.explain(error)
                if error.status is Status.UNAVAILABLE and stream == self._exchange_health:
                    raise _ConnectionLostError(problem) from error  # not the leader; the next server may be
            except (OSError, StreamTerminatedError, ProtocolError) as error:
                problem = status.explain(error)
            except Exception as error:
                # A bug or an unexpected message must cost one stream, not the whole agent.
                log.exception("failed to serve a stream: unexpected error")
                problem = status.explain(error)
            if not channel.connected or self._goodbye_confirmed.is_set():
                raise _ConnectionLostError(problem)
            failures = 1 if self._parts.clock.monotonic() - began >= STABLE_SECONDS else failures + 1
            log.debug("stream ended", extra={"stream": stream.__name__, "reason": problem})
            await self._parts.clock.sleep(timing.BACKOFF.delay(failures, self._parts.rng))

    async def _exchange_health(self, stub: agent_grpc.AgentServiceStub) -> None:
        async with stub.SubmitHealthReport.open() as stream:
            await stream.send_request()
            self._outbox.on_stream_open()
            self._request_report()
            self._is_open = True
            sender = asyncio.create_task(self._send(stream))
            try:
                async with asyncio.timeout(FIRST_ANSWER_SECONDS) as deadline:
                    while (answer := await stream.recv_message()) is not None:
                        deadline.reschedule(None)
                        self._on_answer(answer)
            except TimeoutError as error:
                raise _ConnectionLostError("no answer to health reports") from error
            finally:
                self._is_open = self._parts.metrics.connected = False
                sender.cancel()
                await asyncio.wait({sender})
            if not sender.cancelled() and sender.exception() is None:
                self._goodbye_confirmed.set()

    async def _send(self, stream: Any) -> None:
        while True:
            message = await self._outbox.next()
            is_last = message.WhichOneof("kind") == "goodbye"
            await stream.send_message(message, end=is_last)
            if is_last:
                return

    def _on_answer(self, answer: agent_pb2.HealthAnswer) -> None:
        if not self._is_answered:
            self._is_answered = True
            self._problems.clear()
            self._parts.metrics.connected = True
            self._parts.metrics.connections += 1
            log.info("connected to the server", extra={"server": self._address})
        if answer.server_time_unix_ms:
            self._calls.server_clock_offset = answer.server_time_unix_ms / 1000 - self._parts.clock.wall()
        interval = timing.report_interval(self._parts.settings.report_interval, answer.report_interval_ms / 1000)
        if interval != self._interval:
            self._interval = interval
            self._schedule_changed.set()
        self._spread = answer.reconnect_spread_ms / 1000
        if answer.HasField("checks"):
            self._parts.checks.configure(answer.checks)

    async def _send_reports(self) -> None:
        while True:
            await self._wait_report_due()
            self._outbox.set_report(await self._calls.make_report())

    async def _wait_report_due(self) -> None:
        while not self._is_report_requested:
            self._schedule_changed.clear()
            wait = timing.until_report(self._interval, self._parts.rng)
            if not await background.is_set_within(self._schedule_changed, wait):
                return
        self._is_report_requested = False

    def _request_report(self) -> None:
        self._is_report_requested = True
        self._schedule_changed.set()

    def _log_problem(self, problem: str, wait: float) -> None:
        """A warning for each new reason, debug for its repetitions: the addresses are tried in turn, again and again."""
        found = (self._address, problem)
        is_new = found not in self._problems and len(self._problems) < MAX_PROBLEMS
        if is_new:
            self._problems.add(found)
        lost = "connection to the server lost, reconnecting"
        log.log(
            logging.WARNING if is_new else logging.DEBUG,
            lost if self._is_answered else "failed to connect to the server, retrying",
            extra={"server": self._address, "reason": problem, "retry_seconds": round(wait, 1)},
        )
