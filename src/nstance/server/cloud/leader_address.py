"""The leader address: a fixed address of the shard that moves to the server that leads.

It is assigned in the background when a term begins; nothing depends on it, because clients know all addresses. A server
that stops in order releases it, so that its successor need not take it away. A deposed server leaves it alone.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from nstance.objects.journal import DeposedError
from nstance.providers import errors, port
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.tasks.backoff import Backoff, retry

log = logging.getLogger(__name__)

RETRY = Backoff(1.0, 60.0)


@dataclass(eq=False)
class LeaderAddress:
    provider: port.LeaderAddress | None
    _: KW_ONLY
    calls: ProviderCalls
    is_configured: Callable[[], bool]
    _may_be_assigned: bool = False
    _is_releasing: bool = False

    async def run(self) -> None:
        if self.provider is not None and self.is_configured():
            assign = functools.partial(self._assign, self.provider)
            await retry(assign, clock=self.calls.clock, expected=errors.ProviderError, on_failure=_on_failure)
        await asyncio.Event().wait()

    async def _assign(self, provider: port.LeaderAddress) -> None:
        if not self._is_releasing:
            self._may_be_assigned = True
            await self.calls.once("assign_leader_network", self.calls.others, provider.assign_leader_address)

    async def release(self, seconds: float) -> None:
        """Releases the address if this server may have it. The next leader does not wait longer than this for it."""
        self._is_releasing = True
        if self.provider is None or not self._may_be_assigned:
            return
        try:
            async with asyncio.timeout(seconds):
                await self.calls.once("release_leader_network", self.calls.others, self.provider.release_leader_address)
        except (errors.ProviderError, TimeoutError, DeposedError) as error:
            log.info("failed to release the leader address", extra={"error": str(error) or "timed out"})


def _on_failure(error: errors.ProviderError, failures: int) -> float:
    delay = RETRY.delay(failures)
    log.warning("failed to assign the leader address", extra={"error": str(error), "retry_seconds": round(delay, 1)})
    return delay
