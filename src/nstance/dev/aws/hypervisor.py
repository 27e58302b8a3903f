"""Boots the instances that EC2 creates: each instance's own userdata, in a sandbox, with its metadata service beside it."""

import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
from aiohttp import web

from nstance.clock import Clock
from nstance.dev import loopback
from nstance.dev.aws.books import Params
from nstance.dev.aws.stand_in import StandIn
from nstance.dev.sandbox.sandbox import Sandbox, SandboxError
from nstance.tasks.keyed_tasks import KeyedTasks

log = logging.getLogger(__name__)

CONSOLE_SECONDS = 1.0
MAX_CONSOLE_CHARACTERS = 64 * 1024  # as EC2 keeps
_HOP = ("host", "content-length", "connection", "transfer-encoding")


@contextlib.asynccontextmanager
async def metadata_address(base: str) -> AsyncIterator[str]:
    """An address of its own for one instance's metadata. On EC2 it is 169.254.169.254, where every instance finds its own."""
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.Response:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
            async with session.request(request.method, base + request.path_qs, headers=headers) as reply:
                return web.Response(status=reply.status, body=await reply.read())

        async with loopback.answering(forward) as url:
            yield url


class Hypervisor:
    """Runs the instances of a stand-in until it is cancelled."""

    def __init__(self, stand_in: StandIn, folder: Path, *, clock: Clock, environment: Mapping[str, str]) -> None:
        """`environment` is set on every instance, such as the endpoint of the stand-in."""
        self._stand_in = stand_in
        self._folder = folder
        self._clock = clock
        self._environment = environment
        self._userdata: dict[str, bytes] = {}  # of the instances that exist
        self._machines = KeyedTasks[str](self._run_machine)
        self.running: dict[str, Sandbox] = {}
        stand_in.instances.on_launch = self._on_launch
        stand_in.instances.on_end = self._on_end

    async def run(self) -> None:
        await self._machines.run()

    def _on_launch(self, instance: str, params: Params) -> None:
        self._userdata[instance] = base64.b64decode(params.get("UserData", ""))
        self._machines.want(self._userdata)

    def _on_end(self, instance: str) -> None:
        self._userdata.pop(instance, None)
        self._machines.want(self._userdata)

    async def _run_machine(self, instance: str) -> None:
        async with metadata_address(self._stand_in.metadata_url(instance)) as url:
            own = {"NSTANCE_METADATA_URL": url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": url}
            machine = Sandbox(self._folder / instance, hostname=instance, environment={**self._environment, **own})
            try:
                await self._boot(instance, machine)
                while True:
                    if machine.console:
                        self._stand_in.books.console[instance] = machine.console[-MAX_CONSOLE_CHARACTERS:]
                    await self._clock.sleep(CONSOLE_SECONDS)
            finally:
                self.running.pop(instance, None)
                await machine.stop()

    async def _boot(self, instance: str, machine: Sandbox) -> None:
        userdata = self._userdata.get(instance, b"")
        if not userdata:
            return  # a machine that does nothing
        try:
            await machine.boot(userdata)
        except SandboxError as error:
            log.error("failed to boot instance: %s", error, extra={"instance": instance})
            self._stand_in.books.console[instance] = str(error)
            return
        self.running[instance] = machine
        log.info("instance booted", extra={"instance": instance})
