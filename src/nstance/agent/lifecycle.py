"""An agent from start to stop: prepare the directories, register, stay connected, say goodbye."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from nstance.agent import endpoint, spot, stop_reason
from nstance.agent.checks import probes
from nstance.agent.checks.runner import Checks
from nstance.agent.credentials import key_generation, registration
from nstance.agent.credentials.identity import IdentityFolder, StoredCertificate
from nstance.agent.endpoint import HealthStatus
from nstance.agent.files.folder import Folder, SetupError
from nstance.agent.files.installation import ReceivedFiles
from nstance.agent.files.on_receive import OnReceive
from nstance.agent.health import VitalsReader
from nstance.agent.metrics import AgentMetrics
from nstance.agent.server_calls import AgentParts
from nstance.agent.session import Session
from nstance.agent.settings import DirectorySettings, Settings
from nstance.agent.stop_reason import StopReason
from nstance.agent.traces import AgentTraces
from nstance.agent.version import VERSION
from nstance.clock import Clock, Rng
from nstance.telemetry.tracing import Tracing
from nstance.v1 import agent_pb2

LOCK_POLL_SECONDS = 0.05
CANCEL_SECONDS = 0.2

log = logging.getLogger(__name__)


async def run(settings: Settings, *, clock: Clock, rng: Rng, tracing: Tracing | None = None) -> None:
    """Until SIGTERM or SIGINT. Raises SetupError or OSError where only an administrator can help."""
    stop, going_down = asyncio.Event(), asyncio.Event()
    for number, event in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGUSR1, going_down)):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    await run_until(settings, stop=stop, going_down=going_down, clock=clock, rng=rng, tracing=tracing)


async def run_until(
    settings: Settings,
    *,
    stop: asyncio.Event,
    going_down: asyncio.Event,
    clock: Clock,
    rng: Rng,
    tracing: Tracing | None = None,
) -> None:
    identity, keys, recv = (_prepare_folder(each) for each in (settings.identity, settings.keys, settings.recv))
    metrics = AgentMetrics()
    async with (
        _lock_identity(identity, clock, settings.waits.identity_lock),
        _serve_health(settings, metrics) as health,
    ):
        on_receive = OnReceive(settings.on_receive, identity, number=lambda: received.number(), waits=settings.waits)
        received = ReceivedFiles(recv=recv, identity=identity, before_commit=on_receive.before_commit)
        received.recover()
        if not on_receive.has_succeeded() and received.states()[0]:
            on_receive.request_run()
        parts = AgentParts(
            settings=settings,
            identity=IdentityFolder(identity, instance=settings.instance),
            received=received,
            keys=keys,
            vitals=VitalsReader(disk=recv.path),
            on_receive=on_receive,
            checks=Checks(probes.probe, clock),
            disk=ThreadPoolExecutor(1, "disk"),
            make_keys=key_generation.make_in_child,
            clock=clock,
            rng=rng,
            metrics=metrics,
            traces=AgentTraces(settings.instance, tracing.tracer if tracing is not None else None, clock),
        )
        endpoint.notify_systemd("READY=1")
        await Lifecycle(parts, health).run_until(stop, going_down)


class Lifecycle:
    def __init__(self, parts: AgentParts, health: HealthStatus) -> None:
        self._parts = parts
        self._health = health
        self._session: Session | None = None
        self._registered = asyncio.Event()  # there is a session

    async def run_until(self, stop: asyncio.Event, going_down: asyncio.Event) -> None:
        work = {
            asyncio.create_task(self._serve()),
            asyncio.create_task(self._parts.on_receive.serve()),
            asyncio.create_task(self._parts.checks.serve()),
            asyncio.create_task(self._announce_shutdown(going_down)),
            asyncio.create_task(self._watch_spot()),
        }
        stopping = asyncio.create_task(stop.wait())
        pending = {*work, stopping}
        try:
            while not stopping.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # a task that failed ends the agent
            endpoint.notify_systemd("STOPPING=1")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._parts.settings.waits.stop):
                    await self._leave()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.wait({*work, stopping}, timeout=CANCEL_SECONDS)

    async def _serve(self) -> None:
        try:
            certificate = await self._obtain_certificate()
        except registration.NonceRejectedError as rejection:
            log.error("registration nonce was refused, replace this instance", extra={"reason": rejection})
            self._health.set_unhealthy("the registration nonce was refused")
            return
        self._health.set_healthy()
        self._session = Session(self._parts, certificate)
        self._registered.set()
        await self._session.run()

    async def _obtain_certificate(self) -> StoredCertificate:
        """The certificate on disk, or a new one for the nonce."""
        identity = self._parts.identity
        identity.ca_pem()
        # Not before: an agent that cannot run says so in one line.
        log.info("agent starting", extra={"instance": self._parts.settings.instance, "version": VERSION})
        stored = identity.certificate()
        if stored is not None and self._parts.clock.wall() < stored.not_after:
            identity.delete_nonce()
            return stored
        nonce = identity.nonce()
        if nonce is not None:
            loop = asyncio.get_running_loop()
            pair = await loop.run_in_executor(self._parts.disk, identity.key_pair, nonce, self._parts.make_keys)
            started = self._parts.clock.monotonic()
            certificate, traceparent = await registration.register(
                self._parts.settings, identity, nonce, pair, clock=self._parts.clock, rng=self._parts.rng
            )
            self._parts.traces.registered(traceparent, started)
            return certificate
        if stored is not None:
            # This machine's clock may be wrong; the server decides.
            log.warning("certificate expired by this machine's clock, using it anyway")
            return stored
        raise SetupError(
            f"no certificate and no nonce in {self._parts.settings.identity.path}; userdata writes nonce.jwt"
        )

    async def _announce_shutdown(self, going_down: asyncio.Event) -> None:
        """SIGUSR1 says that the machine may go down; if systemd agrees, the server is notified at once."""
        while True:
            await going_down.wait()
            going_down.clear()
            if self._session is not None and await stop_reason.detect() is StopReason.SHUTDOWN:
                notice = agent_pb2.Notice(kind=agent_pb2.Notice.SHUTDOWN, detail="the system is stopping")
                self._session.send_notice(notice)

    async def _watch_spot(self) -> None:
        """The metadata service repeats its notices, so nothing is missed by starting after the registration."""
        await self._registered.wait()
        assert self._session is not None
        await spot.watch(self._parts.settings, self._session.send_notice, clock=self._parts.clock, rng=self._parts.rng)

    async def _leave(self) -> None:
        if self._session is not None:
            reason = await stop_reason.detect()
            why = "the machine shuts down" if reason is StopReason.SHUTDOWN else "asked to stop, the machine stays up"
            log.info("agent stopping", extra={"reason": why})
            await self._session.leave(reason)


def _prepare_folder(settings: DirectorySettings) -> Folder:
    folder = Folder(settings.path, mode=settings.mode)
    folder.prepare()
    return folder


@contextlib.asynccontextmanager
async def _lock_identity(identity: Folder, clock: Clock, seconds: float) -> AsyncIterator[None]:
    """Two agents with one identity would overwrite each other's files, so the directory itself is locked."""
    descriptor = os.open(identity.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = clock.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.monotonic() >= end:
                    raise SetupError(f"another nstance-agent runs with {identity.path}; stop it first") from error
                await clock.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def _serve_health(settings: Settings, metrics: AgentMetrics) -> AsyncIterator[HealthStatus]:
    health = HealthStatus(metrics)
    if settings.health is None:
        yield health
        return
    try:
        server = await endpoint.serve(settings.health, health)
    except OSError as error:
        raise SetupError(f"failed to serve NSTANCE_HEALTH_ADDR at {settings.health}: {error.strerror}") from error
    try:
        yield health
    finally:
        server.close()
