"""The port to a Kubernetes API server.

Objects are plain JSON; the server checks our kinds against the schemas of their CRDs. The traps: a watch may end, lag or
skip at any time, so list first, then watch; after `ExpiredError`, objects missing from the new list were deleted. A version
is an opaque string that may only be compared for equality. An update without the version that was read overwrites other
changes, so `replace` requires one.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from nstance.kube.errors import AlreadyExistsError, NotFoundError
from nstance.kube.kinds import Kind

FIELD_MANAGER = "nstance-operator"  # of all patches: our admission webhook knows the operator's own ones by it

Object = dict[str, Any]


class Change(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # no change; the object has only the version to continue from


@dataclass(frozen=True, slots=True)
class Selection:
    """Objects of a kind: in a namespace or in all, with selectors in Kubernetes notation."""

    kind: Kind
    namespace: str = ""
    labels: str = ""
    fields: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent list. A watch from `version` misses nothing."""

    items: list[Object]
    version: str


@dataclass(frozen=True, slots=True)
class Token:
    value: str
    expires: float  # seconds since 1970

    def __repr__(self) -> str:
        return f"Token(expires={self.expires})"


class Kube(Protocol):
    """Every call has its own deadline and raises only `errors.KubeError` (and CancelledError)."""

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Object:
        """Raises NotFoundError."""
        ...

    async def list(self, kind: Kind, *, namespace: str = "", labels: str = "", fields: str = "") -> Listing:
        """All objects, over all pages; no namespace means all namespaces. `labels` and `fields` are selectors in
        Kubernetes notation. Each item has apiVersion and kind."""
        ...

    def watch(
        self, selection: Selection, *, version: str, timeout: float = 300.0
    ) -> AsyncIterator[tuple[Change, Object]]:
        """Changes after `version`, in order, with bookmarks; ends without an error after about `timeout` seconds. An object
        that no longer matches the selectors is DELETED. Raises ExpiredError at any time, and UnavailableError if the stream
        breaks or is silent for too long. Closing the iterator closes the stream."""
        ...

    async def create(self, kind: Kind, body: Object, *, namespace: str = "") -> Object:
        """Raises AlreadyExistsError. Default namespace: the body's."""
        ...

    async def replace(self, kind: Kind, body: Object) -> Object:
        """Name, namespace and resourceVersion are in the body. Raises ConflictError, NotFoundError, InvalidError."""
        ...

    async def patch(self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: str = "") -> Object:
        """A merge patch: null removes a field, lists are replaced. A resourceVersion in the body makes it conditional.
        `subresource` is "", "status" or "scale"."""
        ...

    async def delete(self, kind: Kind, name: str, *, namespace: str = "", uid: str = "") -> None:
        """Requests deletion, in the background; an object with finalizers stays, with a deletionTimestamp, until they are
        removed. `uid` is a precondition (ConflictError). Raises NotFoundError."""
        ...

    async def evict(self, pod: str, *, namespace: str, uid: str = "") -> None:
        """Uses the Eviction API. Raises ThrottledError if a PodDisruptionBudget forbids it, NotFoundError if the pod is
        gone, ConflictError if another pod has its name now."""
        ...

    async def request_token(self, service_account: str, *, namespace: str, seconds: int) -> Token: ...

    async def close(self) -> None: ...


async def find(kube: Kube, kind: Kind, name: str, *, namespace: str = "") -> Object | None:
    """None only if the API server says that there is none."""
    try:
        return await kube.get(kind, name, namespace=namespace)
    except NotFoundError:
        return None


async def create_or_get(kube: Kube, kind: Kind, body: Object, *, namespace: str = "") -> Object:
    """The existing object, as it is, if there is one of that name."""
    try:
        return await kube.create(kind, body, namespace=namespace)
    except AlreadyExistsError:
        return await kube.get(kind, body["metadata"]["name"], namespace=namespace)
