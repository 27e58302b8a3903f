"""Values that are fetched in the background, refreshed at an interval and remembered in the cache.

Decisions never wait for a fetch. A fetch that fails never removes a value: the last good one stays, also after a restart
of the server.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from nstance.clock import Clock
from nstance.server.cache.cache import CacheUnavailableError
from nstance.tasks.keyed_tasks import KeyedTasks
from nstance.tasks.refresher import refresh_forever

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Generic[K, V]):
    """Where values come from and how they are remembered."""

    fetch: Callable[[K, V | None], Awaitable[V]]  # with the value that is known
    error: type[Exception]  # that `fetch` raises when there is no value now
    load: Callable[[K], Awaitable[V | None]] | None = None  # from the cache; may raise CacheUnavailableError
    save: Callable[[K, V], None] = lambda key, value: None
    fields: Callable[[K], Mapping[str, object]]  # that name the value in logs
    interval: Callable[[], float]
    retry_delay: Callable[[int], float]  # after so many failures
    log_level: int = logging.INFO  # of a new value


class RefreshedValues(Generic[K, V]):
    def __init__(self, source: Source[K, V], *, clock: Clock, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a value or a problem is new."""
        self._source = source
        self._clock = clock
        self._on_change = on_change
        self.values: dict[K, V] = {}
        self.problems: dict[K, str] = {}  # why there is no newer value
        self._workers = KeyedTasks[tuple[K, Hashable]](lambda worker: self._refresh_forever(worker[0]))

    def configure(self, keys: Iterable[K], *, restart_on: Hashable = None) -> None:
        """From now on exactly these values are refreshed; all at once when `restart_on` has changed."""
        wanted = dict.fromkeys(keys)
        self.values = {key: value for key, value in self.values.items() if key in wanted}
        self.problems = {key: problem for key, problem in self.problems.items() if key in wanted}
        self._workers.want((key, restart_on) for key in wanted)

    async def run(self) -> None:
        await self._workers.run()

    async def _refresh_forever(self, key: K) -> None:
        if key not in self.values and self._source.load is not None:
            with contextlib.suppress(CacheUnavailableError):
                value = await self._source.load(key)
                if value is not None:
                    self._set(key, value)
        await refresh_forever(
            lambda: self._refresh(key),
            clock=self._clock,
            interval=self._source.interval,
            expected=self._source.error,
            on_failure=lambda error, failures: self._on_failure(key, str(error), failures),
        )

    async def _refresh(self, key: K) -> None:
        known = self.values.get(key)
        value = await self._source.fetch(key, known)
        if value != known:
            self._source.save(key, value)
        self._set(key, value)

    def _set(self, key: K, value: V) -> None:
        has_recovered = self.problems.pop(key, None) is not None
        if has_recovered or self.values.get(key) != value:
            self.values[key] = value
            log.log(self._source.log_level, "value refreshed", extra=dict(self._source.fields(key)))
            self._on_change()

    def _on_failure(self, key: K, problem: str, failures: int) -> float:
        delay = self._source.retry_delay(failures)
        log.warning(
            "failed to refresh value",
            extra={
                **self._source.fields(key),
                "error": problem,
                "retry_seconds": round(delay, 1),
                "has_last_good_value": key in self.values,
            },
        )
        if self.problems.get(key) != problem:
            self.problems[key] = problem
            self._on_change()
        return delay
