"""The shard's fixed address, where the provider has one: it follows the leader.

Assigned in the background when a term begins; correctness does not depend on it, because clients know all addresses. Given
back when a server stops in order, so that its successor need not take it away; a deposed server leaves it alone.
"""

import asyncio
import logging
from collections.abc import Callable

from nstance.clock import Clock
from nstance.objects.journal import DeposedError
from nstance.providers import errors, port
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.tasks.backoff import Backoff

log = logging.getLogger(__name__)

RETRY = Backoff(1.0, 60.0)


class LeaderAddress:
    def __init__(
        self, provider: port.LeaderAddress | None, *, calls: ProviderCalls, clock: Clock, wanted: Callable[[], bool]
    ) -> None:
        """`wanted`: the configuration names one."""
        self._provider = provider
        self._calls = calls
        self._clock = clock
        self._wanted = wanted
        self._asked = False  # it may be here
        self._over = asyncio.Event()

    async def run(self) -> None:
        if self._provider is not None and self._wanted():
            await self._assign(self._provider)
        await asyncio.Event().wait()

    async def _assign(self, provider: port.LeaderAddress) -> None:
        failures = 0
        while not self._over.is_set():
            try:
                self._asked = True
                await self._calls.once("assign_leader_network", self._calls.questions, provider.assign_leader_address)
                return
            except errors.ProviderError as problem:
                failures += 1
                wait = RETRY.delay(failures)
                log.warning("the leader network could not be assigned", extra={"error": str(problem), "retry": wait})
                await self._clock.sleep(wait)

    async def release(self, seconds: float) -> None:
        """Give it back, if this server may have it; whoever leads next does not wait longer for that."""
        self._over.set()
        if self._provider is None or not self._asked:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._calls.once(
                    "release_leader_network", self._calls.questions, self._provider.release_leader_address
                )
        except (errors.ProviderError, TimeoutError, DeposedError) as problem:
            log.info("the leader network was not released", extra={"error": str(problem) or "timed out"})
