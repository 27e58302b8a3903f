"""Images by name: looked up at the provider, remembered, asked for anew from time to time.

A lookup that fails never takes away what was found before; where nothing was, the configured fallback serves; where there
is none, groups that use the image wait. A new image reaches new instances only.
"""

import logging
from collections.abc import Callable, Mapping

from nstance.clock import Clock
from nstance.config import hashes, workload
from nstance.providers import errors
from nstance.providers.port import ImageQuery, Provider
from nstance.server.cache.cache import Cache, CacheUnavailableError
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.tasks.keyed_tasks import KeyedTasks

log = logging.getLogger(__name__)

RETRY_FIRST = 5.0
RETRY_MOST = 600.0

Lookup = tuple[str, workload.Image]


class Images:
    """The shard's images during one term."""

    def __init__(
        self,
        provider: Provider,
        *,
        clock: Clock,
        calls: ProviderCalls,
        interval: Callable[[], float],
        changed: Callable[[], None],
        cache: Cache | None = None,
    ) -> None:
        """`changed` is told when a value or a reason is new."""
        self._provider = provider
        self._clock = clock
        self._calls = calls
        self._interval = interval
        self._changed = changed
        self._cache = cache
        self._wanted: Mapping[str, workload.Image] = {}
        self._asked: frozenset[str] = frozenset()
        self._found: dict[Lookup, str] = {}
        self._problems: dict[Lookup, str] = {}
        self._workers = KeyedTasks[Lookup](self._keep)

    def configure(self, images: Mapping[str, workload.Image], *, kind: str) -> None:
        """`kind`: of the provider; images of another one are not asked for."""
        self._wanted = images
        asked = [
            (name, image)
            for name, image in images.items()
            if self._provider.capabilities.images and image.filters and image.provider in (None, kind)
        ]
        self._asked = frozenset(name for name, _ in asked)
        self._found = {lookup: id for lookup, id in self._found.items() if lookup in asked}
        self._problems = {lookup: why for lookup, why in self._problems.items() if lookup in asked}
        self._workers.want(asked)

    async def run(self) -> None:
        await self._workers.run()

    def values(self) -> dict[str, str | None]:
        """By name; None: there is one to be found, and it is not known yet."""
        return {name: self._value(name, image) for name, image in self._wanted.items()}

    def problem(self, name: str) -> str:
        """Why an image is not known; empty while it is being looked up for the first time."""
        image = self._wanted.get(name)
        return self._problems.get((name, image), "") if image is not None else ""

    def _value(self, name: str, image: workload.Image) -> str | None:
        found = self._found.get((name, image))
        if found is not None:
            return found
        if name not in self._asked:
            return image.fallback
        # The fallback is for a lookup that failed, not for the moment before its answer.
        return image.fallback or None if (name, image) in self._problems else None

    async def _keep(self, lookup: Lookup) -> None:
        await self._remember(lookup)
        failures = 0
        while True:
            try:
                found = await self._ask(lookup[1])
            except errors.ProviderError as problem:
                wait = min(RETRY_MOST, self._interval(), RETRY_FIRST * 2.0 ** min(failures, 10))
                failures += 1
                self._failed(lookup, str(problem), wait)
            else:
                failures, wait = 0, self._interval()
                self._succeeded(lookup, found)
                if self._cache is not None:
                    self._cache.put_image(_key(lookup), found)
            await self._clock.sleep(wait)

    async def _ask(self, image: workload.Image) -> str:
        query = ImageQuery(
            filters={each.name: each.values for each in image.filters},
            owners=image.owners,
            sort=image.sort,
            order=image.order,
        )
        return await self._calls.once("find_image", self._calls.questions, lambda: self._provider.find_image(query))

    async def _remember(self, lookup: Lookup) -> None:
        if self._cache is None or lookup in self._found:
            return
        try:
            kept = await self._cache.image(_key(lookup))
        except CacheUnavailableError:
            return
        if kept:
            self._succeeded(lookup, kept)

    def _succeeded(self, lookup: Lookup, found: str) -> None:
        healed = self._problems.pop(lookup, None) is not None
        if self._found.get(lookup) != found:
            log.info("an image was found", extra={"image": lookup[0], "id": found})
            self._found[lookup] = found
            self._changed()
        elif healed:
            self._changed()

    def _failed(self, lookup: Lookup, why: str, wait: float) -> None:
        serves = self._found.get(lookup) or lookup[1].fallback
        log.warning(
            "an image lookup failed",
            extra={"image": lookup[0], "error": why, "retry": round(wait, 1), "serves": serves or "none"},
        )
        if self._problems.get(lookup) != why:
            self._problems[lookup] = why
            self._changed()


def _key(lookup: Lookup) -> str:
    """With what was asked: an answer to another question is none."""
    name, image = lookup
    return f"{name} {hashes.digest(image.model_dump(mode='json', exclude={'fallback'}))}"
