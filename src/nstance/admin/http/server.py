"""Runs the HTTP API until a signal."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from nstance.admin import errors, output
from nstance.admin.client import Client
from nstance.admin.http import access, routes
from nstance.admin.http.access_log import AccessLog
from nstance.admin.http.oidc.provider import Provider
from nstance.admin.http.oidc.settings import OidcSettings
from nstance.admin.options import Target
from nstance.admin.shard import fanout
from nstance.admin.shard_flags import ShardSelection
from nstance.clock import Clock, SystemClock
from nstance.config.addresses import Address

SHUTDOWN_SECONDS = 1.0  # then open streams are cut
RENEW_CHECK_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    storage: Target | None = None  # the bucket to read
    access_log: str | None = None  # a file, or - for standard error
    oidc: OidcSettings | None = None


async def serve(selection: ShardSelection, bind: Address, guard: access.Access, options: ServeOptions) -> None:
    """Until SIGTERM or SIGINT. Shards need not be reachable yet."""
    guard.check(bind)
    context = guard.context()
    clock = SystemClock()
    async with fanout.open_clients(selection) as clients:
        log = _open_log(options.access_log, clock)
        provider = _open_provider(options.oidc, clock) if options.oidc is not None else None
        extras = routes.Extras(storage=options.storage, log=log, provider=provider)
        app = routes.application(clients, guard, clock, extras)
        runner = web.AppRunner(app, access_log=None, logger=_null_logger(), shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, bind.host or None, bind.port, ssl_context=context).start()
            except OSError as error:
                raise errors.CommandError(f"cannot listen on {bind}: {error.strerror or error}") from error
            scheme = "https" if context is not None else "http"
            output.note(f"serving {', '.join(selection.shards)} at {scheme}://{bind}")
            renewing = asyncio.create_task(_renew(clients, clock))
            try:
                await _wait_for_signal()
            finally:
                renewing.cancel()
        finally:
            await runner.cleanup()
            if log is not None:
                log.close()


def _open_provider(settings: OidcSettings, clock: Clock) -> Provider:
    try:
        return Provider(settings, clock)
    except OSError as problem:
        raise errors.CommandError(f"cannot use the CA {settings.ca_file}: {problem.strerror}") from problem


def _open_log(target: str | None, clock: Clock) -> AccessLog | None:
    try:
        return AccessLog(target, clock) if target is not None else None
    except OSError as problem:
        raise errors.CommandError(f"cannot write the access log {target}: {problem.strerror}") from problem


def _null_logger() -> logging.Logger:
    """Malformed requests of strangers must not fill the log."""
    logger = logging.getLogger("nstance.admin.http.refused")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


async def _renew(clients: Sequence[Client], clock: Clock) -> None:
    """Also without requests: the certificate must not expire meanwhile."""
    while True:
        for client in clients:
            await client.renew_if_due()
        await clock.sleep(RENEW_CHECK_SECONDS)


async def _wait_for_signal() -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
