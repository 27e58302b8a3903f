"""The agent's work for its server: workload keys, files, health reports, certificate renewal.

Each stream method serves one stream and knows nothing of connections; the session opens it again when it ends. Disk
work runs on one thread, in order, and is finished even if the connection that asked for it is gone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from grpclib.exceptions import GRPCError

from nstance.agent import timing
from nstance.agent.checks.runner import Checks
from nstance.agent.credentials import key_generation, keys
from nstance.agent.credentials.identity import IdentityFolder, StoredCertificate
from nstance.agent.files import installation
from nstance.agent.files.folder import Folder, SetupError
from nstance.agent.files.on_receive import OnReceive
from nstance.agent.health import Vitals, VitalsReader
from nstance.agent.metrics import AgentMetrics
from nstance.agent.settings import Settings
from nstance.agent.traces import AgentTraces
from nstance.agent.version import VERSION
from nstance.clock import Clock, Rng
from nstance.tasks import background
from nstance.v1 import agent_grpc, agent_pb2, registration_pb2
from nstance.wire import status
from nstance.wire.call import call

CALL_TIMEOUT_SECONDS = 30.0
RENEWAL_CHECK_SECONDS = 3600.0  # wall clocks jump, so the due time is compared at least this often
RENEWAL_PAUSE_SECONDS = 30.0  # the shortest time between two renewals, whatever the certificate's dates say

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """What an agent is built of. `disk` is an executor with one thread."""

    settings: Settings
    identity: IdentityFolder
    received: installation.ReceivedFiles
    keys: Folder
    vitals: VitalsReader
    on_receive: OnReceive
    checks: Checks
    disk: Executor
    make_keys: key_generation.KeyMaker
    clock: Clock
    rng: Rng
    traces: AgentTraces
    metrics: AgentMetrics = field(default_factory=AgentMetrics)


class ServerCalls:
    def __init__(
        self, parts: AgentParts, certificate: StoredCertificate, *, request_report: Callable[[], None]
    ) -> None:
        self._parts = parts
        self._request_report = request_report
        self.certificate = certificate
        self.ca_pem = parts.identity.ca_pem()
        self.server_clock_offset = 0.0  # seconds that the server's clock is ahead of this one
        self._boot_id = f"{parts.rng.bits(128):032x}"
        self._sequence = 0
        self._problems: dict[str, str] = {}
        self._resend_files = asyncio.Event()  # the server must send all files again
        self._had_files = False  # at the last report
        parts.on_receive.on_change = parts.checks.on_change = request_report

    async def make_report(self) -> agent_pb2.HealthReport:
        config_hash, received_hash, states, vitals = await self._on_disk(self._read_state)
        if self._had_files and not config_hash and "disk" not in self._problems:
            log.warning("received files changed or removed on this machine, requesting all of them")
            self._resend_files.set()
        self._had_files = bool(config_hash)
        self._sequence += 1
        problems = [each for each in (*self._problems.values(), self._parts.on_receive.problem) if each]
        metrics = self._parts.metrics
        metrics.reports, metrics.problems = self._sequence, len(problems)
        metrics.certificate_expires = self.certificate.not_after
        return agent_pb2.HealthReport(
            boot_id=self._boot_id,
            sequence=self._sequence,
            version=VERSION,
            uptime_seconds=vitals.uptime_seconds,
            cpu_percent=vitals.cpu_percent,
            memory_percent=vitals.memory_percent,
            disk_percent=vitals.disk_percent,
            load1=vitals.load1,
            config_hash=config_hash,
            files=states,
            files_error="; ".join(problems),
            instance_id=self.certificate.identity.id,
            received_hash=received_hash,
            checks_hash=self._parts.checks.hash,
            checks=self._parts.checks.results(),
        )

    async def receive_key_requests(self, stub: agent_grpc.AgentServiceStub) -> None:
        async with stub.ReceiveKeyRequests.open() as stream:
            await stream.send_message(agent_pb2.ReceiveKeyRequestsRequest(), end=True)
            while (request := await stream.recv_message()) is not None:
                try:
                    pairs, is_new = await self._on_disk(self._ensure_keys, list(request.names))
                except keys.KeysRejectedError as error:
                    self._set_problem("keys", str(error))
                    continue
                self._set_problem("keys", None)
                public = [agent_pb2.PublicKey(name=pair.name, pem=pair.pem) for pair in pairs]
                submission = agent_pb2.SubmitPublicKeysRequest(keys=public)
                await call(stub.SubmitPublicKeys, submission, timeout=CALL_TIMEOUT_SECONDS)
                log.debug("public keys submitted", extra={"keys": len(public)})
                if is_new:
                    self._resend_files.set()

    def _ensure_keys(self, names: list[str]) -> tuple[list[keys.PublicKey], bool]:
        """Returns also whether a key is new, because certificates for the key that it replaces no longer fit. That is noted
        on disk before the key is, so that a crash in between cannot separate the two."""
        had, _ = self._file_states()
        received = self._parts.received
        pairs = keys.ensure(names, self._parts.keys, self._parts.make_keys, before_new=received.invalidate)
        return pairs, bool(had) and not self._file_states()[0]

    async def receive_files(self, stub: agent_grpc.AgentServiceStub) -> None:
        self._resend_files.clear()
        config_hash, states = await self._on_disk(self._file_states)
        incoming: installation.Incoming | None = None
        async with stub.ReceiveFiles.open() as stream:
            await stream.send_message(agent_pb2.ReceiveFilesRequest(config_hash=config_hash, files=states), end=True)
            while (message := await self._next_file(stream)) is not None:
                kind = message.WhichOneof("kind")
                if incoming is None:
                    incoming = await self._on_disk(self._parts.received.begin)
                if kind == "file":
                    await self._on_disk(incoming.add, message.file.name, message.file.content)
                elif kind == "commit":
                    await self._commit(incoming, message.commit)
                    incoming = None
            if self._resend_files.is_set():
                await stream.cancel()  # otherwise closing it would wait for its end

    async def _next_file(self, stream: Any) -> Any:
        """None at the end of the stream, or when a new stream must be opened."""
        async with background.running([stream.recv_message(), self._resend_files.wait()]) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].result() if tasks[0].done() else None

    async def _commit(self, incoming: installation.Incoming, commit: agent_pb2.Commit) -> None:
        work = asyncio.get_running_loop().run_in_executor(
            self._parts.disk, incoming.commit, commit.config_hash, commit.files
        )
        work.add_done_callback(lambda done: self._on_commit(done, commit))
        await asyncio.wait({work})  # cancelling this does not cancel the commit, nor what follows from it

    def _on_commit(self, done: "asyncio.Future[bool]", commit: agent_pb2.Commit) -> None:
        error = done.exception()
        if error is not None:
            if not isinstance(error, installation.FilesRejectedError):
                log.error("failed to install files: unexpected error", exc_info=error)
            self._set_problem("files", str(error))
            return
        self._set_problem("files", None)
        if done.result():
            log.info("files installed", extra={"files": commit.files, "config_hash": commit.config_hash})
            self._parts.on_receive.request_run()
        self._request_report()

    async def renew_certificate(self, stub: agent_grpc.AgentServiceStub) -> None:
        """Renew at two thirds of the certificate's life by the server's clock, with the same key. Never returns."""
        clock, failures = self._parts.clock, 0
        while True:
            due = timing.renewal_due(self.certificate.not_before, self.certificate.not_after)
            wait = due - (clock.wall() + self.server_clock_offset)
            if wait > 0:
                await clock.sleep(min(wait, RENEWAL_CHECK_SECONDS))
                continue
            try:
                request = registration_pb2.RenewCertificateRequest()
                renewed = await call(stub.RenewCertificate, request, timeout=CALL_TIMEOUT_SECONDS)
                await self._on_disk(self._store_certificate, renewed)
                failures = 0
                log.info("certificate renewed")
            except (GRPCError, OSError, SetupError) as error:
                failures += 1
                log.error("failed to renew the certificate", extra={"reason": status.explain(error)})
            await clock.sleep(RENEWAL_PAUSE_SECONDS + timing.BACKOFF.delay(failures + 1, self._parts.rng))

    def _store_certificate(self, renewed: registration_pb2.RegisterResponse) -> None:
        """Runs on the disk's thread to its end, so that the next connection uses what is on disk."""
        certificate = self._parts.identity.accept(renewed.certificate_pem, renewed.ca_bundle_pem)
        self.ca_pem = renewed.ca_bundle_pem
        self.certificate = certificate

    def _read_state(self) -> tuple[str, str, list[agent_pb2.FileState], Vitals]:
        config_hash, states = self._file_states()
        received_hash = ""
        with contextlib.suppress(OSError, SetupError):  # a marker that cannot be read proves nothing
            received_hash = config_hash if config_hash and self._parts.on_receive.has_succeeded() else ""
        return config_hash, received_hash, states, self._parts.vitals.read()

    def _file_states(self) -> tuple[str, list[agent_pb2.FileState]]:
        try:
            config_hash, states = self._parts.received.states()
        except (OSError, SetupError) as error:
            self._problems["disk"] = f"failed to read the received files: {error}"
            return "", []
        self._problems.pop("disk", None)
        return config_hash, [
            agent_pb2.FileState(name=state.name, sha256=state.sha256, serial=state.serial, expires_unix=state.expires)
            for state in states
        ]

    def _set_problem(self, request: str, problem: str | None) -> None:
        """Reported at once, also when it is over."""
        if problem is not None:
            log.error("failed to apply server request", extra={"request": request, "reason": problem})
            self._problems[request] = problem
            self._request_report()
        elif self._problems.pop(request, None) is not None:
            self._request_report()

    async def _on_disk(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._parts.disk, work, *args)
