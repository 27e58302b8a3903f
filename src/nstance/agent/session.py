"""The life of a registered agent: one connection, five calls, for ever.

A stream that ends is opened again on its own; a connection that ends is made again, at the next server's address if it
did not serve. The health stream is the one that tells whether it serves; a slow disk may delay the reports on it, but
never a notice or a goodbye.

The trap: every agent of a shard loses its server in the same moment. The server says beforehand over how long they
shall spread their return.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from nstance.agent import certificates, plan
from nstance.agent.departure import Departure
from nstance.agent.duties import Duties, Parts
from nstance.agent.identity import Certified
from nstance.agent.outbox import Outbox
from nstance.agent.settings import Address
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import status, tls
from nstance.wire.channel import Channel

FIRST_ANSWER_SECONDS = 15.0  # from opening the health stream
STABLE_SECONDS = 10.0  # a connection that served this long is not a failure when it ends
GOODBYE_SECONDS = 0.8  # of the two seconds that a stop may take

log = logging.getLogger(__name__)


class _Lost(Exception):
    """The connection is of no more use."""


class Session:
    def __init__(self, parts: Parts, certified: Certified) -> None:
        self._parts = parts
        self._duties = Duties(parts, certified, want_report=self._want_report)
        self._shard = parts.identity.shard()
        self._key_pem = parts.identity.key_pem()
        self._outbox = Outbox()
        self._interval = parts.settings.report_interval
        self._spread = 0.0
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
                wait = plan.reconnect(0, self._spread, self._parts.rng)
            else:
                tries, turn = tries + 1, turn + 1
                rounds, rest = divmod(tries, len(addresses))
                wait = 0.0 if rest else plan.reconnect(rounds, self._spread, self._parts.rng)
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
            context=tls.client_context(
                ca_pem=self._duties.ca_pem, certificate_pem=self._duties.certified.pem, key_pem=self._key_pem
            ),
            expect_cluster=self._duties.certified.who.cluster,
            expect_shard=self._shard,
            clock=self._parts.clock,
            identify=certificates.identify,
        )
        stub = agent_grpc.AgentServiceStub(channel)
        streams = (self._health, self._duties.receive_key_requests, self._duties.receive_files)
        tasks = [asyncio.create_task(self._keep(channel, stub, stream)) for stream in streams]
        tasks += [asyncio.create_task(self._reports()), asyncio.create_task(self._duties.renew(stub))]
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
            await self._parts.clock.sleep(plan.backoff(failures, self._parts.rng))

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
            log.info("connected", extra={"instance": self._duties.certified.who.id})
        if answer.server_time_unix_ms:
            self._duties.skew = answer.server_time_unix_ms / 1000 - self._parts.clock.wall()
        interval = plan.interval(self._parts.settings.report_interval, answer.report_interval_ms / 1000)
        if interval != self._interval:
            self._interval = interval
            self._nudged.set()
        self._spread = answer.reconnect_spread_ms / 1000
        if answer.HasField("checks"):
            self._parts.checks.configure(answer.checks)

    async def _reports(self) -> None:
        while True:
            await self._report_due()
            self._outbox.report(await self._duties.report())

    async def _report_due(self) -> None:
        while not self._report_wanted:
            self._nudged.clear()
            try:
                async with asyncio.timeout(plan.until_report(self._interval, self._parts.rng)):
                    await self._nudged.wait()
            except TimeoutError:
                return
        self._report_wanted = False

    def _want_report(self) -> None:
        self._report_wanted = True
        self._nudged.set()

    def _complain(self, problem: str, wait: float) -> None:
        """Once for each new reason; the rest is for those who look closer."""
        level = logging.DEBUG if problem == self._last_complaint else logging.WARNING
        self._last_complaint = problem
        log.log(level, "no connection", extra={"reason": problem, "next_try_seconds": round(wait, 1)})
