"""The client of the workload cluster, when nodes are in another cluster than the operator.

An administrator keeps its kubeconfig in the `<cluster>-kubeconfig` Secret. The Secret is watched, and each change of it
creates a new client. The trap: a resource version of one cluster means nothing to another, so after a change of the
server every watch starts with a list again.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from nstance.kube import errors, kubeconfig
from nstance.kube.kinds import Kind
from nstance.kube.kubeconfig import Access
from nstance.kube.mirror import Mirror
from nstance.kube.port import Change, Kube, Listing, Object, Selection, Token

log = logging.getLogger(__name__)

KUBECONFIG_KEY = "value"


def secret_name(cluster: str) -> str:
    """The name that Cluster API expects."""
    return f"{cluster}-kubeconfig"


class RemoteKube:
    """A `port.Kube` that follows a Secret. Without a valid one, every call raises UnavailableError."""

    def __init__(self, secrets: Mirror, name: str, *, connect: Callable[[Access], Kube]) -> None:
        """`secrets` mirrors at least that Secret; its owner runs it."""
        self._name = name
        self._connect = connect
        self._kube: Kube | None = None
        self._content = b""
        self._server = ""
        self._server_changes = 0
        self._listed: dict[Selection, int] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._problem = f"the Secret {name} with the workload cluster's kubeconfig is missing"
        secrets.listen(self._on_secret_change)

    @property
    def problem(self) -> str:
        """Why there is no client; empty if there is one."""
        return "" if self._kube is not None else self._problem

    def _on_secret_change(self, old: Object | None, new: Object | None) -> None:
        if (new or old or {})["metadata"]["name"] != self._name or new is None:
            return  # deleted: the last known client stays
        encoded = (new.get("data") or {}).get(KUBECONFIG_KEY, "")
        try:
            content = base64.b64decode(encoded, validate=True)
            if content == self._content:
                return
            access = kubeconfig.parse(content, source=f"Secret {self._name}")
        except (binascii.Error, kubeconfig.KubeconfigError) as problem:
            self._problem = str(problem)
            log.error("failed to read workload kubeconfig", extra={"secret": self._name, "reason": problem})
            return
        before, self._kube = self._kube, self._connect(access)
        self._content = content
        if access.server != self._server:
            self._server = access.server
            self._server_changes += 1
        log.info("workload cluster connected", extra={"server": access.server})
        if before is not None:
            task = asyncio.ensure_future(before.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    @property
    def _client(self) -> Kube:
        if self._kube is None:
            raise errors.UnavailableError(self._problem)
        return self._kube

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Object:
        return await self._client.get(kind, name, namespace=namespace)

    async def list(self, kind: Kind, *, namespace: str = "", labels: str = "", fields: str = "") -> Listing:
        changes = self._server_changes
        found = await self._client.list(kind, namespace=namespace, labels=labels, fields=fields)
        self._listed[Selection(kind, namespace, labels, fields)] = changes
        return found

    async def watch(
        self, selection: Selection, *, version: str, timeout: float = 300.0
    ) -> AsyncIterator[tuple[Change, Object]]:
        kube, changes = self._client, self._server_changes
        if self._listed.get(selection, changes) != changes:
            raise errors.ExpiredError("the workload cluster changed")
        stream = kube.watch(selection, version=version, timeout=timeout)
        async with contextlib.aclosing(stream) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def create(self, kind: Kind, body: Object, *, namespace: str = "") -> Object:
        return await self._client.create(kind, body, namespace=namespace)

    async def replace(self, kind: Kind, body: Object) -> Object:
        return await self._client.replace(kind, body)

    async def patch(self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: str = "") -> Object:
        return await self._client.patch(kind, name, body, namespace=namespace, subresource=subresource)

    async def delete(self, kind: Kind, name: str, *, namespace: str = "", uid: str = "") -> None:
        await self._client.delete(kind, name, namespace=namespace, uid=uid)

    async def evict(self, pod: str, *, namespace: str, uid: str = "") -> None:
        await self._client.evict(pod, namespace=namespace, uid=uid)

    async def request_token(self, service_account: str, *, namespace: str, seconds: int) -> Token:
        return await self._client.request_token(service_account, namespace=namespace, seconds=seconds)

    async def close(self) -> None:
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._kube is not None:
            await self._kube.close()
