"""Signed URLs from which instances download the agent, if it is an object of the shard's bucket.

A VM needs no role for such a URL. It ends with the credentials that signed it, at the latest after an hour, so it is
signed again every two minutes. A URL is never stored.
"""

import logging
from collections.abc import Callable, Iterable

from nstance.clock import Clock
from nstance.objects import errors
from nstance.objects.port import Key, ObjectStore, sign_url
from nstance.server.cache.refreshed_values import RefreshedValues, Source
from nstance.tasks.backoff import Backoff

LIFETIME_SECONDS = 3600.0
REFRESH_SECONDS = 120.0
RETRY = Backoff(2.0, 60.0)


class AgentDownload:
    """Of one shard during one term."""

    def __init__(self, store: ObjectStore, *, clock: Clock, on_change: Callable[[], None]) -> None:
        self._store = store
        source = Source(
            fetch=self._sign,
            error=errors.StorageError,
            fields=lambda key: {"kind": "agent", "object": key},
            interval=lambda: REFRESH_SECONDS,
            retry_delay=RETRY.delay,
            log_level=logging.DEBUG,
        )
        self._urls = RefreshedValues(source, clock=clock, on_change=on_change)

    def configure(self, keys: Iterable[str]) -> None:
        self._urls.configure(keys)

    async def run(self) -> None:
        await self._urls.run()

    def urls(self) -> dict[str, str]:
        """By object."""
        return dict(self._urls.values)

    def problem(self, key: str) -> str:
        """Why the object has no URL; empty if it has one or is being signed."""
        return self._urls.problems.get(key, "")

    async def _sign(self, key: str, known: str | None) -> str:
        return await sign_url(self._store, Key(key), seconds=LIFETIME_SECONDS)
