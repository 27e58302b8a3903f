"""Which subnets are nearly full, as far as the provider tells: new instances go elsewhere while there is an elsewhere.

Only a hint that spares refused calls. A subnet of which nothing is known counts as roomy, and one that a lookup failed for
as what it was: whether a VM fits is decided by the create call.
"""

import logging
from collections.abc import Iterable

from nstance.clock import Clock
from nstance.model.group import Group
from nstance.providers import errors
from nstance.providers.port import SubnetCapacity
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.tasks.keyed_tasks import KeyedTasks
from nstance.tasks.refresher import refresh_forever

log = logging.getLogger(__name__)

INTERVAL = 60.0
SPARE = 10  # free addresses: with no more, others come first


class Subnets:
    def __init__(self, provider: SubnetCapacity | None, *, calls: ProviderCalls, clock: Clock) -> None:
        self._provider = provider
        self._calls = calls
        self._clock = clock
        self._workers = KeyedTasks[str](self._keep)
        self.crowded: set[str] = set()

    def configure(self, groups: Iterable[Group]) -> None:
        """Asked for where a group has a choice."""
        names: dict[str, None] = {}
        if self._provider is not None:
            names = {name: None for group in groups if len(group.subnets) > 1 for name in group.subnets}
        self.crowded.intersection_update(names)  # in place: decisions look at this very set
        self._workers.want(names)

    async def run(self) -> None:
        await self._workers.run()

    async def _keep(self, name: str) -> None:
        def on_failure(problem: errors.ProviderError, failures: int) -> float:
            log.info("failed to get the free addresses of a subnet", extra={"subnet": name, "error": str(problem)})
            return INTERVAL

        await refresh_forever(
            lambda: self._refresh(name),
            clock=self._clock,
            interval=lambda: INTERVAL,
            expected=errors.ProviderError,
            on_failure=on_failure,
        )

    async def _refresh(self, name: str) -> None:
        provider = self._provider
        assert provider is not None, "without it no subnet is looked up"
        free = await self._calls.once("subnet_capacity", self._calls.questions, lambda: provider.free_addresses(name))
        self._note(name, crowded=free is not None and free <= SPARE)

    def _note(self, name: str, *, crowded: bool) -> None:
        if crowded and name not in self.crowded:
            log.info("a subnet is nearly full, others come first", extra={"subnet": name})
        (self.crowded.add if crowded else self.crowded.discard)(name)
