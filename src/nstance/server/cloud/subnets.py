"""Subnets that are nearly full, as far as the provider tells. New instances use other subnets while there are any.

This is only a hint that saves calls. A subnet of which nothing is known counts as free, and a failed lookup changes
nothing: the create call decides whether a VM fits.
"""

import logging
from collections.abc import Iterable

from nstance.model.group import Group
from nstance.providers import errors
from nstance.providers.port import SubnetCapacity
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.tasks.keyed_tasks import KeyedTasks
from nstance.tasks.refresher import refresh_forever

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0
MIN_FREE_ADDRESSES = 10


class Subnets:
    def __init__(self, provider: SubnetCapacity | None, calls: ProviderCalls) -> None:
        self._provider = provider
        self._calls = calls
        self._workers = KeyedTasks[str](self._refresh_forever)
        self.crowded: set[str] = set()

    def configure(self, groups: Iterable[Group]) -> None:
        """Subnets are looked up where a group has a choice."""
        names: dict[str, None] = {}
        if self._provider is not None:
            names = {name: None for group in groups if len(group.subnets) > 1 for name in group.subnets}
        self.crowded.intersection_update(names)  # in place: decisions hold a reference to this set
        self._workers.want(names)

    async def run(self) -> None:
        await self._workers.run()

    async def _refresh_forever(self, name: str) -> None:
        def on_failure(error: errors.ProviderError, failures: int) -> float:
            log.info("failed to get the free addresses of a subnet", extra={"subnet": name, "error": str(error)})
            return INTERVAL_SECONDS

        await refresh_forever(
            lambda: self._refresh(name),
            clock=self._calls.clock,
            interval=lambda: INTERVAL_SECONDS,
            expected=errors.ProviderError,
            on_failure=on_failure,
        )

    async def _refresh(self, name: str) -> None:
        provider = self._provider
        assert provider is not None, "without it no subnet is looked up"
        free = await self._calls.once("subnet_capacity", self._calls.others, lambda: provider.free_addresses(name))
        self._set_crowded(name, free is not None and free <= MIN_FREE_ADDRESSES)

    def _set_crowded(self, name: str, is_crowded: bool) -> None:
        if is_crowded and name not in self.crowded:
            log.info("subnet is nearly full, others are preferred", extra={"subnet": name})
        (self.crowded.add if is_crowded else self.crowded.discard)(name)
