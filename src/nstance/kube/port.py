"""The door to a Kubernetes API server.

Objects are plain JSON, as the server speaks it: our kinds have schemas in their CRDs, and the server checks them. The
traps: a watch may end, lag or skip at any time, so only list-then-watch gives the truth, and after `Expired` whatever the
new list lacks was deleted; a version is an opaque string that may be compared for equality only; an update without the
version it was read at overwrites what others wrote, so `replace` demands one.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from nstance.kube.kinds import Kind

Object = dict[str, Any]
Operations = list[Object]  # of a JSON patch


class Change(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing changed; the object holds only the version to resume from


class Patch(Enum):
    MERGE = "application/merge-patch+json"  # null removes a field, lists are replaced whole
    JSON = "application/json-patch+json"  # a list of operations; `test` makes it conditional
    STRATEGIC = "application/strategic-merge-patch+json"  # core kinds only: lists merge by their keys
    APPLY = "application/apply-patch+yaml"  # server-side apply; the body is a whole object


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent look at a kind: watch from `version` and nothing in between is lost."""

    items: list[Object]
    version: str


@dataclass(frozen=True, slots=True)
class Token:
    value: str
    expires: float  # seconds since 1970

    def __repr__(self) -> str:
        return f"Token(expires={self.expires})"


class Kube(Protocol):
    """Every call has a deadline of its own and raises only `errors.KubeError` (and CancelledError)."""

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Object:
        """Raises NotFound."""
        ...

    async def list(self, kind: Kind, *, namespace: str = "", labels: str = "", fields: str = "") -> Listing:
        """All of them, however many pages that takes; no namespace means all. `labels` and `fields` are selectors in
        Kubernetes' own notation. Each item carries apiVersion and kind."""
        ...

    def watch(
        self,
        kind: Kind,
        *,
        version: str,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        timeout: float = 300.0,
    ) -> AsyncIterator[tuple[Change, Object]]:
        """Changes after `version`, in order, with bookmarks; ends without an error after about `timeout` seconds. An object
        that stops matching the selectors is DELETED. Raises Expired, at the start or in the middle, and Unavailable if
        the stream breaks or stays silent for too long. Closing the iterator closes the stream."""
        ...

    async def create(self, kind: Kind, body: Object, *, namespace: str = "") -> Object:
        """Raises AlreadyExists. The namespace defaults to the body's."""
        ...

    async def replace(self, kind: Kind, body: Object, *, subresource: str = "") -> Object:
        """Name, namespace and resourceVersion are the body's. Raises Conflict, NotFound, Invalid."""
        ...

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Object | Operations,
        *,
        namespace: str = "",
        how: Patch = Patch.MERGE,
        subresource: str = "",
        field_manager: str = "",
    ) -> Object:
        """A resourceVersion in a merge body makes it conditional. `subresource` is "", "status" or "scale"."""
        ...

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", version: str = "", foreground: bool = False
    ) -> None:
        """Asks for deletion; with finalizers the object stays, with a deletionTimestamp, until they are gone. `uid` and
        `version` are preconditions (Conflict). Raises NotFound."""
        ...

    async def evict(self, pod: str, *, namespace: str, uid: str = "", grace: int | None = None) -> None:
        """Through the Eviction API. Raises Busy when a PodDisruptionBudget refuses, NotFound when the pod is gone,
        Conflict when another pod has its name by now."""
        ...

    async def request_token(self, service_account: str, *, namespace: str, seconds: int) -> Token: ...

    async def close(self) -> None: ...
