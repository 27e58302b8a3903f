"""From start to signal."""

import asyncio
import logging
import signal
from collections.abc import Sequence

from aiohttp import web

from nstance.admin import failures, output
from nstance.admin.client import Client
from nstance.admin.http import access, routes
from nstance.admin.reach import Reach
from nstance.admin.shard import asking
from nstance.clock import Clock, SystemClock
from nstance.config.addresses import Address

GOODBYE_SECONDS = 1.0  # then open streams are cut
RENEW_EVERY = 600.0


async def serve(reach: Reach, bind: Address, guard: access.Access) -> None:
    """Until SIGTERM or SIGINT. Shards need not answer yet."""
    guard.check(bind)
    context = guard.context()
    clock = SystemClock()
    async with asking.opened(reach) as clients:
        app = routes.application(clients, guard, clock)
        runner = web.AppRunner(app, access_log=None, logger=_quiet(), shutdown_timeout=GOODBYE_SECONDS)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, bind.host or None, bind.port, ssl_context=context).start()
            except OSError as problem:
                raise failures.Refused(f"cannot listen on {bind}: {problem.strerror or problem}") from problem
            scheme = "https" if context is not None else "http"
            output.note(f"serving {', '.join(reach.shards)} at {scheme}://{bind}")
            renewing = asyncio.create_task(_renew(clients, clock))
            try:
                await _signalled()
            finally:
                renewing.cancel()
        finally:
            await runner.cleanup()


def _quiet() -> logging.Logger:
    """Bad requests are answered; strangers do not fill our log with them."""
    quiet = logging.getLogger("nstance.admin.http.refused")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    return quiet


async def _renew(clients: Sequence[Client], clock: Clock) -> None:
    """Nobody may ask for anything for longer than the certificate lives."""
    while True:
        for client in clients:
            await client.renew_if_due()
        await clock.sleep(RENEW_EVERY)


async def _signalled() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, ended.set)
    await ended.wait()
