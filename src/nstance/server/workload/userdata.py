"""Userdata from URLs: fetched ahead of its use, asked for anew with its ETag, kept while it cannot be had.

Deciding never waits for the web: a group whose userdata was never fetched is blocked until it was. The last good copy is
on disk too, so that a server that restarts while the web is away can still make instances.
"""

import logging
from collections.abc import Callable, Iterable

from nstance import gotemplate
from nstance.clock import Clock
from nstance.server.cache.cache import Cache, CacheUnavailableError
from nstance.server.workload import http_fetch
from nstance.server.workload.http_fetch import FetchError, Page
from nstance.tasks.backoff import Backoff
from nstance.tasks.keyed_tasks import KeyedTasks
from nstance.tasks.refresher import refresh_forever

log = logging.getLogger(__name__)

REFRESH = 300.0
RETRY = Backoff(2.0, 300.0)


class Userdata:
    """The pages that the shard's groups use, during one term."""

    def __init__(
        self,
        *,
        clock: Clock,
        changed: Callable[[], None],
        cache: Cache | None = None,
    ) -> None:
        """`changed` is told when a page or a reason is new."""
        self._clock = clock
        self._changed = changed
        self._cache = cache
        self._pages: dict[str, Page] = {}
        self._problems: dict[str, str] = {}
        self._workers = KeyedTasks[tuple[str, tuple[str, ...]]](lambda task: self._keep(*task))

    def configure(self, urls: Iterable[str], *, private_hosts: tuple[str, ...]) -> None:
        wanted = list(urls)
        self._pages = {url: page for url, page in self._pages.items() if url in wanted}
        self._problems = {url: why for url, why in self._problems.items() if url in wanted}
        # Who may be asked is part of what is looked after: a host that is allowed now need not wait for its turn.
        self._workers.want((url, private_hosts) for url in wanted)

    async def run(self) -> None:
        await self._workers.run()

    def text(self, url: str) -> bytes | None:
        """The last good copy."""
        page = self._pages.get(url)
        return page.body if page is not None else None

    def problem(self, url: str) -> str:
        """Why there is no newer copy; empty if nothing is wrong."""
        return self._problems.get(url, "")

    async def _keep(self, url: str, private_hosts: tuple[str, ...]) -> None:
        await self._remember(url)
        await refresh_forever(
            lambda: self._fetch(url, private_hosts),
            clock=self._clock,
            interval=lambda: REFRESH,
            expected=FetchError,
            on_failure=lambda problem, failures: self._on_failure(url, str(problem), failures),
        )

    async def _fetch(self, url: str, private_hosts: tuple[str, ...]) -> None:
        known = self._pages.get(url)
        page = await http_fetch.fetch(url, etag=known.etag if known is not None else "", private=private_hosts)
        if page is not None:
            _check(page.body)
            if self._cache is not None and page != known:
                self._cache.put_userdata(url, page.etag, page.body)
            self._pages[url] = page
        healed = self._problems.pop(url, None) is not None
        if healed or (page is not None and (known is None or page.body != known.body)):
            log.info("userdata was fetched", extra={"url": http_fetch.shown(url)})
            self._changed()

    async def _remember(self, url: str) -> None:
        if self._cache is None or url in self._pages:
            return
        try:
            kept = await self._cache.userdata(url)
        except CacheUnavailableError:
            return
        if kept is not None:
            self._pages[url] = Page(kept[1], kept[0])
            self._changed()

    def _on_failure(self, url: str, why: str, failures: int) -> float:
        wait = RETRY.delay(failures)
        log.warning(
            "userdata cannot be fetched",
            extra={
                "url": http_fetch.shown(url),
                "error": why,
                "retry": round(wait, 1),
                "serves": "the last good copy" if url in self._pages else "none",
            },
        )
        if self._problems.get(url) != why:
            self._problems[url] = why
            self._changed()
        return wait


def _check(body: bytes) -> None:
    """A page that can never be rendered does not take the place of one that can."""
    try:
        gotemplate.parse(body.decode())
    except UnicodeDecodeError:
        raise FetchError("it is not text in UTF-8") from None
    except gotemplate.TemplateError as problem:
        raise FetchError(f"it is not a template: {problem}") from problem
