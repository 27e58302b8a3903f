"""Images by name: looked up at the provider, remembered, and looked up again at an interval.

A failed lookup never removes an image that was found before. Without one the configured fallback is used; without a
fallback, groups that use the image wait. A new image is used by new instances only.
"""

from collections.abc import Callable, Mapping

from nstance.config import hashes
from nstance.config.model import workload
from nstance.providers import errors, port
from nstance.providers.port import ImageQuery
from nstance.server.cache.cache import Cache
from nstance.server.cache.refreshed_values import RefreshedValues, Source
from nstance.server.cloud.provider_calls import ProviderCalls

Lookup = tuple[str, workload.Image]


class Images:
    """The shard's images during one term."""

    def __init__(
        self,
        provider: port.Images | None,
        *,
        calls: ProviderCalls,
        interval: Callable[[], float],
        on_change: Callable[[], None],
        cache: Cache | None = None,
    ) -> None:
        self._provider = provider
        self._calls = calls
        self._cache = cache
        self._configured: Mapping[str, workload.Image] = {}
        self._looked_up: frozenset[str] = frozenset()
        source = Source(
            fetch=self._fetch,
            error=errors.ProviderError,
            load=self._load,
            save=self._save,
            fields=lambda lookup: {"kind": "image", "image": lookup[0]},
            interval=interval,
            retry_delay=lambda failures: min(interval(), calls.waits.image_retry.delay(failures)),
        )
        self._ids = RefreshedValues(source, clock=calls.clock, on_change=on_change)

    def configure(self, images: Mapping[str, workload.Image], *, kind: str) -> None:
        """`kind`: of the provider; images of another one are not looked up."""
        self._configured = images
        lookups = [
            (name, image)
            for name, image in images.items()
            if self._provider is not None and (image.filters or image.ssm_parameter) and image.provider in (None, kind)
        ]
        self._looked_up = frozenset(name for name, _ in lookups)
        self._ids.configure(lookups)

    async def run(self) -> None:
        await self._ids.run()

    def values(self) -> dict[str, str | None]:
        """Image IDs by name; None if the ID is not known yet."""
        return {name: self._value(name, image) for name, image in self._configured.items()}

    def problem(self, name: str) -> str:
        """Why an image is not known; empty during its first lookup."""
        image = self._configured.get(name)
        return self._ids.problems.get((name, image), "") if image is not None else ""

    def _value(self, name: str, image: workload.Image) -> str | None:
        id = self._ids.values.get((name, image))
        if id is not None:
            return id
        if name not in self._looked_up:
            return image.fallback
        # The fallback is for a lookup that failed, not for the time before its answer.
        return image.fallback or None if (name, image) in self._ids.problems else None

    async def _fetch(self, lookup: Lookup, known: str | None) -> str:
        query = image_query(lookup[1])
        provider = self._provider
        assert provider is not None, "without it no image is looked up"
        return await self._calls.once("find_image", self._calls.others, lambda: provider.find_image(query))

    async def _load(self, lookup: Lookup) -> str | None:
        return await self._cache.image(_cache_key(lookup)) if self._cache is not None else None

    def _save(self, lookup: Lookup, id: str) -> None:
        if self._cache is not None:
            self._cache.put_image(_cache_key(lookup), id)


def image_query(image: workload.Image) -> ImageQuery:
    return ImageQuery(
        filters={each.name: each.values for each in image.filters},
        owners=image.owners,
        sort=image.sort,
        order=image.order,
        parameter=image.ssm_parameter,
    )


def _cache_key(lookup: Lookup) -> str:
    """Contains the query, so that the answer to another query is not used."""
    name, image = lookup
    return f"{name} {hashes.digest(image.model_dump(mode='json', exclude={'fallback'}))}"
