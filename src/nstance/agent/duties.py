"""What the agent does for its server, apart from keeping in touch: keys, files, reports, renewal.

Each duty is one stream or timer and knows nothing of connections: it fails with its stream and is begun again. What
touches the disk runs on one thread, in order, and is finished even if the connection that asked for it is gone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from grpclib.exceptions import GRPCError

from nstance.agent import files, keys, keywork, plan
from nstance.agent.checks import Checks
from nstance.agent.folder import Folder, Unusable
from nstance.agent.health import Looker, Vitals
from nstance.agent.identity import Certified, IdentityFolder
from nstance.agent.onreceive import OnReceive
from nstance.agent.settings import Settings
from nstance.agent.version import VERSION
from nstance.clock import Clock, Rng
from nstance.v1 import agent_grpc, agent_pb2, registration_pb2
from nstance.wire import status
from nstance.wire.call import call

CALL_SECONDS = 30.0
RENEWAL_CHECK_SECONDS = 3600.0  # wall clocks jump: look again at least this often
RENEWAL_PAUSE_SECONDS = 30.0  # whatever the certificate's dates say, no more often than this

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an agent works with. The disk is an executor with one thread."""

    settings: Settings
    identity: IdentityFolder
    received: files.ReceivedFiles
    keys: Folder
    looker: Looker
    on_receive: OnReceive
    checks: Checks
    disk: Executor
    make: keywork.Maker
    clock: Clock
    rng: Rng


class Duties:
    def __init__(self, parts: Parts, certified: Certified, *, want_report: Callable[[], None]) -> None:
        self._parts = parts
        self._want_report = want_report
        self.certified = certified
        self.ca_pem = parts.identity.ca_pem()
        self.skew = 0.0  # of the server's clock against ours
        self._boot = f"{parts.rng.bits(128):032x}"
        self._sequence = 0
        self._problems: dict[str, str] = {}
        self._anew = asyncio.Event()  # all files are to be asked for again
        self._had_files = False  # at the last report
        parts.on_receive.on_change = parts.checks.on_change = want_report

    async def report(self) -> agent_pb2.HealthReport:
        config_hash, received_hash, states, vitals = await self._on_disk(self._look)
        if self._had_files and not config_hash and "disk" not in self._problems:
            log.warning("received files were changed or removed on this machine: asking for all of them")
            self._anew.set()
        self._had_files = bool(config_hash)
        self._sequence += 1
        problems = [*self._problems.values(), self._parts.on_receive.problem]
        return agent_pb2.HealthReport(
            boot_id=self._boot,
            sequence=self._sequence,
            version=VERSION,
            uptime_seconds=vitals.uptime_seconds,
            cpu_percent=vitals.cpu_percent,
            memory_percent=vitals.memory_percent,
            disk_percent=vitals.disk_percent,
            load1=vitals.load1,
            config_hash=config_hash,
            files=states,
            files_error="; ".join(filter(None, problems)),
            instance_id=self.certified.who.id,
            received_hash=received_hash,
            checks_hash=self._parts.checks.hash,
            checks=self._parts.checks.results(),
        )

    async def receive_key_requests(self, stub: agent_grpc.AgentServiceStub) -> None:
        async with stub.ReceiveKeyRequests.open() as stream:
            await stream.send_message(agent_pb2.ReceiveKeyRequestsRequest(), end=True)
            while (request := await stream.recv_message()) is not None:
                try:
                    pairs, new = await self._on_disk(self._ensure_keys, list(request.names))
                except keys.Refused as error:
                    self._trouble("keys", str(error))
                    continue
                self._trouble("keys", None)
                public = [agent_pb2.PublicKey(name=pair.name, pem=pair.pem) for pair in pairs]
                submission = agent_pb2.SubmitPublicKeysRequest(keys=public)
                await call(stub.SubmitPublicKeys, submission, timeout=CALL_SECONDS)
                log.debug("public keys submitted", extra={"keys": len(public)})
                if new:
                    self._anew.set()

    def _ensure_keys(self, names: list[str]) -> tuple[list[keys.PublicKey], bool]:
        """And whether one is new: certificates for the one that it replaces are of no use then. That is noted on disk
        before the key is, so that no crash in between leaves the two apart."""
        had, _ = self._states()
        pairs = keys.ensure(names, self._parts.keys, self._parts.make, before_new=self._parts.received.distrust)
        return pairs, bool(had) and not self._states()[0]

    async def receive_files(self, stub: agent_grpc.AgentServiceStub) -> None:
        self._anew.clear()
        config_hash, states = await self._on_disk(self._states)
        incoming: files.Incoming | None = None
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
            if self._anew.is_set():
                await stream.cancel()  # its end would be waited for

    async def _next_file(self, stream: Any) -> Any:
        """None at the end of the stream, or when another one is to be opened."""
        tasks = [asyncio.ensure_future(stream.recv_message()), asyncio.ensure_future(self._anew.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].result() if tasks[0].done() else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _commit(self, incoming: files.Incoming, commit: agent_pb2.Commit) -> None:
        work = asyncio.get_running_loop().run_in_executor(
            self._parts.disk, incoming.commit, commit.config_hash, commit.files
        )
        work.add_done_callback(lambda done: self._committed(done, commit))
        await asyncio.wait({work})  # does not cancel it: a set that is put in place is also told and acted upon

    def _committed(self, done: "asyncio.Future[bool]", commit: agent_pb2.Commit) -> None:
        error = done.exception()
        if error is not None:
            if not isinstance(error, files.Refused):
                log.error("putting files in place failed unexpectedly", exc_info=error)
            self._trouble("files", str(error))
            return
        self._trouble("files", None)
        if done.result():
            log.info("files put in place", extra={"files": commit.files, "config_hash": commit.config_hash})
            self._parts.on_receive.want()
        self._want_report()

    async def renew(self, stub: agent_grpc.AgentServiceStub) -> None:
        """At two thirds of the certificate's life by the server's clock, with the key as it is. Never returns."""
        clock, failures = self._parts.clock, 0
        while True:
            due = plan.renewal_due(self.certified.not_before, self.certified.not_after)
            wait = due - (clock.wall() + self.skew)
            if wait > 0:
                await clock.sleep(min(wait, RENEWAL_CHECK_SECONDS))
                continue
            try:
                request = registration_pb2.RenewCertificateRequest()
                renewed = await call(stub.RenewCertificate, request, timeout=CALL_SECONDS)
                await self._on_disk(self._keep_certificate, renewed)
                failures = 0
                log.info("certificate renewed")
            except (GRPCError, OSError, Unusable) as error:
                failures += 1
                log.error("cannot renew the certificate", extra={"reason": status.explain(error)})
            await clock.sleep(RENEWAL_PAUSE_SECONDS + plan.backoff(failures + 1, self._parts.rng))

    def _keep_certificate(self, renewed: registration_pb2.RegisterResponse) -> None:
        """On the disk's thread to the end: what is on disk is also what the next connection shows."""
        certified = self._parts.identity.accept(renewed.certificate_pem, renewed.ca_bundle_pem)
        self.ca_pem = renewed.ca_bundle_pem
        self.certified = certified

    def _look(self) -> tuple[str, str, list[agent_pb2.FileState], Vitals]:
        config_hash, states = self._states()
        received_hash = ""
        with contextlib.suppress(OSError, Unusable):  # a mark that cannot be read proves nothing
            received_hash = config_hash if config_hash and self._parts.on_receive.succeeded() else ""
        return config_hash, received_hash, states, self._parts.looker.look()

    def _states(self) -> tuple[str, list[agent_pb2.FileState]]:
        try:
            config_hash, states = self._parts.received.states()
        except (OSError, Unusable) as error:
            self._problems["disk"] = f"cannot look at the files: {error}"
            return "", []
        self._problems.pop("disk", None)
        return config_hash, [
            agent_pb2.FileState(name=state.name, sha256=state.sha256, serial=state.serial, expires_unix=state.expires)
            for state in states
        ]

    def _trouble(self, where: str, problem: str | None) -> None:
        """Reported at once when it comes and when it goes."""
        if problem is not None:
            log.error("cannot do as the server asks", extra={"what": where, "reason": problem})
            self._problems[where] = problem
            self._want_report()
        elif self._problems.pop(where, None) is not None:
            self._want_report()

    async def _on_disk(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._parts.disk, work, *args)
