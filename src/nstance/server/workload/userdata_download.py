"""Userdata templates that groups name by URL, fetched before they are needed. `rendering` renders them.

A group whose userdata was never fetched is blocked until it is. When a URL does not answer, the last good copy is used.
"""

from collections.abc import Callable, Iterable

from nstance import gotemplate
from nstance.clock import Clock
from nstance.server.cache.cache import Cache
from nstance.server.cache.refreshed_values import RefreshedValues, Source
from nstance.server.waits import Waits
from nstance.server.workload import http_fetch
from nstance.server.workload.http_fetch import FetchError, Page


class UserdataDownload:
    """The userdata of the shard's groups during one term."""

    def __init__(
        self, waits: Waits, *, clock: Clock, on_change: Callable[[], None], cache: Cache | None = None
    ) -> None:
        self._cache = cache
        self._private_hosts: tuple[str, ...] = ()
        source = Source(
            fetch=self._fetch,
            error=FetchError,
            load=self._load,
            save=self._save,
            fields=lambda url: {"kind": "userdata", "url": http_fetch.without_secrets(url)},
            interval=lambda: waits.userdata_refresh,
            retry_delay=waits.userdata_retry.delay,
        )
        self._pages = RefreshedValues(source, clock=clock, on_change=on_change)

    def configure(self, urls: Iterable[str], *, private_hosts: tuple[str, ...]) -> None:
        self._private_hosts = private_hosts
        self._pages.configure(urls, restart_on=private_hosts)

    async def run(self) -> None:
        await self._pages.run()

    def text(self, url: str) -> bytes | None:
        """The last good copy."""
        page = self._pages.values.get(url)
        return page.body if page is not None else None

    def problem(self, url: str) -> str:
        """Why there is no newer copy; empty if nothing is wrong."""
        return self._pages.problems.get(url, "")

    async def _fetch(self, url: str, known: Page | None) -> Page:
        etag = known.etag if known is not None else ""
        page = await http_fetch.fetch(url, etag=etag, private_hosts=self._private_hosts)
        if page is None:
            assert known is not None, "an answer without content needs an ETag"
            return known
        _check_template(page.body)
        return page

    async def _load(self, url: str) -> Page | None:
        cached = await self._cache.userdata(url) if self._cache is not None else None
        return Page(body=cached[1], etag=cached[0]) if cached is not None else None

    def _save(self, url: str, page: Page) -> None:
        if self._cache is not None:
            self._cache.put_userdata(url, page.etag, page.body)


def _check_template(body: bytes) -> None:
    """A page that can never be rendered must not replace one that can."""
    try:
        gotemplate.parse(body.decode())
    except UnicodeDecodeError:
        raise FetchError("it is not UTF-8 text") from None
    except gotemplate.TemplateError as error:
        raise FetchError(f"it is not a valid template: {error}") from error
