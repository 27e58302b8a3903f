"""Calls to Compute Engine in one project and zone, with errors of the provider port, and the operations that follow them.

A changing call answers with an operation, which may fail later: the error is then inside a reply that is a success.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nstance.clock import Clock
from nstance.gcp.client import CALL_SECONDS, Answer, GoogleClient
from nstance.gcp.endpoints import COMPUTE
from nstance.providers import errors
from nstance.providers.gcp.faults import of_operation, translated

WAIT_SECONDS = 20.0  # of one wait; Google's own limit is two minutes
PAUSE_SECONDS = 0.5  # after a wait that failed
PAGE_SIZE = 500
_HARMLESS_WARNINGS = frozenset({"NO_RESULTS_ON_PAGE"})


class Compute:
    """`project`: empty for that of the credentials."""

    def __init__(self, client: GoogleClient, clock: Clock, *, project: str, zone: str) -> None:
        self.client = client
        self.clock = clock
        self.zone = zone
        self.region = zone.rpartition("-")[0]
        self._project = project

    async def project(self) -> str:
        if not self._project:
            with translated("the metadata server", changes=False):
                self._project = await self.client.project()
        return self._project

    async def call(
        self,
        permission: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Answer:
        """`path` is below the project; `{zone}` and `{region}` in it are filled in."""
        path = path.replace("{zone}", f"zones/{self.zone}").replace("{region}", f"regions/{self.region}")
        path = path if path.startswith("projects/") else f"projects/{await self.project()}/{path}"
        with translated(permission, changes=method != "GET" and not permission.endswith((".list", ".get"))):
            return await self.client.json(COMPUTE, method, path, query=query, body=body, seconds=seconds)

    async def list(
        self,
        permission: str,
        path: str,
        *,
        filter: str = "",
        method: str = "GET",
        body: Mapping[str, object] | None = None,
    ) -> Sequence[Any]:
        """All entries of all pages. A partial answer is an UnavailableError."""
        query = {"maxResults": str(PAGE_SIZE), **({"filter": filter} if filter else {})}
        found: list[Any] = []
        seen: set[str] = set()
        while True:
            page = await self.call(permission, method, path, query=query, body=body)
            _check_whole(page, path)
            items = page.get("items") or ()
            if isinstance(items, dict):  # by scope, of an aggregated listing
                for scope in items.values():
                    _check_whole(scope, path)
                    found += scope.get("instances") or ()
            else:
                found += items
            token = str(page.get("nextPageToken") or "")
            if not token:
                return found
            if token in seen:
                raise errors.UnavailableError(f"{path} repeats a page: the listing is not complete")
            seen.add(token)
            query["pageToken"] = token

    async def wait(self, operation: Answer) -> Answer:
        """The operation after one wait; perhaps it is still not done. Raises whatever the poll met."""
        if operation.get("status") == "DONE":
            return operation
        name = str(operation.get("name") or "")
        path = f"{{zone}}/operations/{name}/wait"
        return await self.call("compute.zoneOperations.get", "POST", path, seconds=WAIT_SECONDS)

    async def finish(self, operation: Answer, permission: str, *, seconds: float) -> None:
        """Until the operation is done. Raises what it failed with, and UnknownOutcomeError after that time."""
        end, last = self.clock.monotonic() + seconds, ""
        while operation.get("status") != "DONE":
            try:
                operation = await self.wait(operation)
            except errors.ProviderError as problem:
                last = f": {problem}"
                await self.clock.sleep(PAUSE_SECONDS)
            if self.clock.monotonic() >= end:
                raise errors.UnknownOutcomeError(f"{operation.get('name')} is not done after {seconds:.0f} s{last}")
        if (failure := of_operation(operation, permission)) is not None:
            raise failure

    async def operations(self, instance: str = "", *, kind: str = "") -> Sequence[Answer]:
        """Those of an instance, or of one kind, or both, as far as Google keeps them."""
        wanted = ("targetLink", f".*/instances/{instance}") if instance else ("operationType", kind)
        found = await self.list("compute.zoneOperations.list", "{zone}/operations", filter=regex_filter(*wanted))
        return [each for each in found if not kind or each.get("operationType") == kind]


def regex_filter(field: str, pattern: str) -> str:
    """Of a list call. Google takes only one field with a regular expression."""
    return f'{field} eq "{pattern}"'


def _check_whole(page: Mapping[str, Any], path: str) -> None:
    warning = page.get("warning")
    if isinstance(warning, dict) and warning.get("code") not in _HARMLESS_WARNINGS:
        raise errors.UnavailableError(
            f"{path}: the listing is partial: {warning.get('code')}: {warning.get('message')}"
        )
    if page.get("unreachables"):
        raise errors.UnavailableError(f"{path}: the listing lacks {', '.join(map(str, page['unreachables']))}")
