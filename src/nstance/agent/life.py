"""An agent's life: prepare the directories, become somebody, stay connected, say goodbye."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from nstance.agent import departure, endpoint, keywork, probes, register, spot
from nstance.agent.checks import Checks
from nstance.agent.departure import Departure
from nstance.agent.duties import Parts
from nstance.agent.endpoint import Light
from nstance.agent.files import ReceivedFiles
from nstance.agent.folder import Folder, Unusable
from nstance.agent.health import Looker
from nstance.agent.identity import Certified, IdentityFolder
from nstance.agent.onreceive import OnReceive
from nstance.agent.session import Session
from nstance.agent.settings import Place, Settings
from nstance.clock import Clock, Rng
from nstance.v1 import agent_pb2

LOCK_SECONDS = 5.0  # for an agent that is just being stopped
LOCK_POLL_SECONDS = 0.05
STOP_SECONDS = 1.6  # of the two that a stop may take
CANCEL_SECONDS = 0.2

log = logging.getLogger(__name__)


async def run(given: Settings, *, clock: Clock, rng: Rng) -> None:
    """Until SIGTERM or SIGINT. Raises Unusable or OSError where only an administrator can help."""
    stop, going_down = asyncio.Event(), asyncio.Event()
    for number, event in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGUSR1, going_down)):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    await live(given, stop=stop, going_down=going_down, clock=clock, rng=rng)


async def live(given: Settings, *, stop: asyncio.Event, going_down: asyncio.Event, clock: Clock, rng: Rng) -> None:
    identity, keys, recv = (_prepared(place) for place in (given.identity, given.keys, given.recv))
    async with _alone(identity, clock), _health(given) as light:
        on_receive = OnReceive(given.on_receive, identity, number=lambda: received.number())
        received = ReceivedFiles(recv=recv, identity=identity, before_commit=on_receive.before_commit)
        received.recover()
        if not on_receive.succeeded() and received.states()[0]:
            on_receive.want()
        parts = Parts(
            settings=given,
            identity=IdentityFolder(identity, instance=given.instance),
            received=received,
            keys=keys,
            looker=Looker(disk=recv.path),
            on_receive=on_receive,
            checks=Checks(probes.probe, clock),
            disk=ThreadPoolExecutor(1, "disk"),
            make=keywork.make_apart,
            clock=clock,
            rng=rng,
        )
        life = Life(parts, light)
        endpoint.tell_systemd("READY=1")
        await life.until(stop, going_down)


class Life:
    def __init__(self, parts: Parts, light: Light) -> None:
        self._parts = parts
        self._light = light
        self._session: Session | None = None
        self._registered = asyncio.Event()  # there is a session

    async def until(self, stop: asyncio.Event, going_down: asyncio.Event) -> None:
        work = {
            asyncio.create_task(self._serve()),
            asyncio.create_task(self._parts.on_receive.serve()),
            asyncio.create_task(self._parts.checks.serve()),
            asyncio.create_task(self._warn(going_down)),
            asyncio.create_task(self._watch_spot()),
        }
        stopping = asyncio.create_task(stop.wait())
        pending = {*work, stopping}
        try:
            while not stopping.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # one that failed ends the agent
            endpoint.tell_systemd("STOPPING=1")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._leave()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.wait({*work, stopping}, timeout=CANCEL_SECONDS)

    async def _serve(self) -> None:
        try:
            certified = await self._become()
        except register.Refused as refusal:
            log.error("the registration nonce was refused; this instance must be replaced", extra={"reason": refusal})
            self._light.red("the registration nonce was refused")
            return
        self._light.green()
        self._session = Session(self._parts, certified)
        self._registered.set()
        await self._session.run()

    async def _become(self) -> Certified:
        """The certificate on disk, or a new one for the nonce."""
        identity = self._parts.identity
        identity.ca_pem()
        held = identity.certified()
        if held is not None and self._parts.clock.wall() < held.not_after:
            identity.forget_nonce()
            return held
        nonce = identity.nonce()
        if nonce is not None:
            loop = asyncio.get_running_loop()
            pair = await loop.run_in_executor(self._parts.disk, identity.pair, nonce, self._parts.make)
            return await register.register(
                self._parts.settings, identity, nonce, pair, clock=self._parts.clock, rng=self._parts.rng
            )
        if held is not None:
            # Whose clock is right is for the server to say.
            log.warning("the certificate has expired by this machine's clock; trying it nevertheless")
            return held
        raise Unusable(
            f"no certificate and no nonce in {self._parts.settings.identity.path}; userdata writes nonce.jwt"
        )

    async def _warn(self, going_down: asyncio.Event) -> None:
        """Somebody believes that the machine goes down; if systemd says so too, the server hears it now."""
        while True:
            await going_down.wait()
            going_down.clear()
            if self._session is not None and await departure.reason() is Departure.SHUTDOWN:
                self._session.notice(agent_pb2.Notice.SHUTDOWN, detail="the system is stopping")

    async def _watch_spot(self) -> None:
        """The metadata service keeps what it said, so nothing is missed by beginning once somebody can be told."""
        await self._registered.wait()
        await spot.watch(self._parts.settings, self._tell, clock=self._parts.clock, rng=self._parts.rng)

    def _tell(self, notice: agent_pb2.Notice) -> None:
        assert self._session is not None
        self._session.notice(notice.kind, deadline_ms=notice.deadline_unix_ms, detail=notice.detail)

    async def _leave(self) -> None:
        if self._session is not None:
            reason = await departure.reason()
            log.info("leaving", extra={"reason": reason})
            await self._session.leave(reason)


def _prepared(place: Place) -> Folder:
    folder = Folder(place.path, mode=place.mode)
    folder.prepare()
    return folder


@contextlib.asynccontextmanager
async def _alone(identity: Folder, clock: Clock) -> AsyncIterator[None]:
    """Two agents with one identity would overwrite each other's files: hold the directory itself locked."""
    descriptor = os.open(identity.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = clock.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.monotonic() >= end:
                    raise Unusable(f"another nstance-agent runs with {identity.path}; stop it first") from error
                await clock.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def _health(given: Settings) -> AsyncIterator[Light]:
    light = Light()
    if given.health is None:
        yield light
        return
    try:
        server = await endpoint.serve(given.health, light)
    except OSError as error:
        raise Unusable(f"cannot serve NSTANCE_HEALTH_ADDR at {given.health}: {error.strerror}") from error
    try:
        yield light
    finally:
        server.close()
