"""Kubernetes Secrets as the operator keeps them: created, or changed only at the version that was read."""

import base64
import binascii
import contextlib
from collections.abc import Mapping

from nstance.kube import kinds
from nstance.kube.port import Kube, Object

MANAGED_BY = {"app.kubernetes.io/managed-by": "nstance-operator"}
TLS = "kubernetes.io/tls"


def manifest(
    name: str, namespace: str, content: Mapping[str, bytes], *, kind: str = "Opaque", **metadata: Mapping[str, str]
) -> Object:
    """`metadata`: labels and annotations."""
    labels = {**metadata.pop("labels", {}), **MANAGED_BY}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": labels, **metadata},
        "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
    }


async def write(kube: Kube, body: Object, *, seen: Object | None) -> None:
    """Over `seen`, the Secret as it was read; None: there was none. Raises ConflictError or AlreadyExistsError."""
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    if seen is None:
        await kube.create(kinds.SECRET, body, namespace=namespace)
        return
    metadata = {**body["metadata"], "resourceVersion": seen["metadata"]["resourceVersion"]}
    await kube.patch(kinds.SECRET, name, {"metadata": metadata, "data": body["data"]}, namespace=namespace)


def decode(secret: Object | None) -> dict[str, bytes]:
    """Values that are not base64 are left out; the API server accepts none."""
    content = {}
    for key, value in ((secret or {}).get("data") or {}).items():
        with contextlib.suppress(binascii.Error, ValueError):
            content[key] = base64.b64decode(value, validate=True)
    return content
