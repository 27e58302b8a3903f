"""Reading and writing Kubernetes objects: conditions, owners, finalizers, and a status that is written only if it changed."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard, cast

from nstance.kube.kinds import Kind
from nstance.kube.port import Kube, Object

FINALIZER = "nstance.dev/operator"
PAUSED = "cluster.x-k8s.io/paused"
CLUSTER_LABEL = "cluster.x-k8s.io/cluster-name"
POOL_LABEL = "cluster.x-k8s.io/pool-name"  # of Cluster API: the MachinePool that a machine belongs to
DELETE_MACHINE = "cluster.x-k8s.io/delete-machine"
REPLICAS_MANAGED_BY = "cluster.x-k8s.io/replicas-managed-by"
MAX_LABEL_LENGTH = 63  # of a value; names may be longer


def name(item: Object) -> str:
    return cast(str, item["metadata"]["name"])


def uid(item: Object) -> str:
    return cast(str, item["metadata"].get("uid", ""))


def generation(item: Object) -> int:
    return cast(int, item["metadata"].get("generation", 0))


def as_object(value: object) -> Object:
    """Anything that is not an object counts as empty: without CRDs, dev-k8s stores any JSON, and one malformed object
    must not hold up all others."""
    return value if isinstance(value, dict) else {}


def spec(item: Object) -> Object:
    return as_object(item.get("spec"))


def status(item: Object) -> Object:
    return as_object(item.get("status"))


def condition(item: Object, type: str) -> Object:
    """The condition of that type; empty if there is none."""
    return next((each for each in status(item).get("conditions") or () if each["type"] == type), {})


def is_ready(item: Object) -> bool:
    return bool(condition(item, "Ready").get("status") == "True")


def provider_id(item: Object) -> str:
    found = spec(item).get("providerID")
    return found if isinstance(found, str) else ""


def infrastructure(item: Object) -> Object:
    """The infrastructureRef of a Machine or a MachinePool."""
    fields = spec(item)
    return as_object((spec(as_object(fields["template"])) if "template" in fields else fields).get("infrastructureRef"))


def annotations(item: Object) -> Mapping[str, str]:
    return as_object(item.get("metadata")).get("annotations") or {}


def labels(item: Object) -> Mapping[str, str]:
    return as_object(item.get("metadata")).get("labels") or {}


def label_value(name: str) -> str:
    """A name as the value of a label. Long ones are hashed as Cluster API does it, because both sides select by it."""
    if len(name) <= MAX_LABEL_LENGTH:
        return name
    digest = 0x811C9DC5  # FNV-1a
    for byte in name.encode():
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    encoded = base64.urlsafe_b64encode(digest.to_bytes(4, "big")).decode().rstrip("=")
    return f"hash_{encoded}_z"


def find_malformed_field(fields: Object, *, required: Iterable[str], texts: Iterable[str]) -> str:
    """What in a spec is missing or not text; empty if nothing is. Without our CRDs, dev-k8s stores any JSON."""
    for key in (*required, *texts):
        value = fields.get(key)
        if (not value and key in required) or not isinstance(value, str | None):
            return f"spec.{key}: expected text, found {value!r}"
    values = fields.get("vars") or {}
    if not isinstance(values, Mapping) or not all(isinstance(each, str) for each in values.values()):
        return f"spec.vars: expected a map of texts, found {values!r}"
    return ""


def is_size(value: object) -> TypeGuard[int]:
    """A number of instances that shards accept."""
    return type(value) is int and 0 <= value < 2**31


def is_being_deleted(item: Object) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def has_finalizer(item: Object) -> bool:
    """Whether our finalizer keeps it from being deleted."""
    return FINALIZER in (item["metadata"].get("finalizers") or [])


def is_paused(cluster: Object | None, *items: Object | None) -> bool:
    """Cluster API's pause, on one of the objects or on their Cluster. Deletions wait for its end too, as with Cluster
    API's own controllers."""
    return any(item is not None and PAUSED in annotations(item) for item in items) or (
        cluster is not None and bool(spec(cluster).get("paused"))
    )


def manifest(kind: Kind, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}


def owner_reference(item: Object, kind: Kind, *, controller: bool = False) -> Object:
    reference: Object = {"apiVersion": kind.api_version, "kind": kind.name, "name": name(item), "uid": uid(item)}
    return reference | ({"controller": True, "blockOwnerDeletion": True} if controller else {})


def is_owned_by(item: Object, owner: str) -> bool:
    """`owner` is a UID."""
    return any(each.get("uid") == owner for each in item["metadata"].get("ownerReferences") or [])


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(timestamp: str) -> float:
    """Since 1970."""
    return datetime.fromisoformat(timestamp).timestamp()


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    holds: bool | None  # None: unknown
    reason: str
    message: str = ""


def merge_conditions(item: Object, conditions: Iterable[Condition], *, now: float) -> list[Object]:
    """The item's conditions with these in them. The transition time changes only with the status, and conditions of
    other controllers stay."""
    merged = {each["type"]: each for each in status(item).get("conditions") or ()}
    for each in conditions:
        value = {True: "True", False: "False", None: "Unknown"}[each.holds]
        before = merged.get(each.type, {})
        merged[each.type] = {
            "type": each.type,
            "status": value,
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == value else timestamp(now),
            "observedGeneration": generation(item),
        }
    return list(merged.values())


def merge_patch(old: Mapping[str, Any], wanted: Mapping[str, Any], *, exact: bool = False) -> Object:
    """The merge patch that gives `old` the fields of `wanted`; empty if it has them. Nested maps become equal (`exact`):
    a merge patch keeps keys that it does not name, so removed ones are set to null."""
    patch: Object = dict.fromkeys(old.keys() - wanted.keys()) if exact else {}
    for key, value in wanted.items():
        before = old.get(key)
        if isinstance(value, Mapping):
            inner = merge_patch(before if isinstance(before, Mapping) else {}, value, exact=True)
            if inner or not isinstance(before, Mapping):
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch


async def write_status(kube: Kube, kind: Kind, item: Object, wanted: Object, *, unchanged: bool = False) -> None:
    """Only if something changes: every write wakes all watchers. `unchanged`: and only if the object is still at the
    version that was read."""
    if change := merge_patch(status(item), wanted):
        metadata = item["metadata"]
        body: Object = {"status": change}
        if unchanged:
            body["metadata"] = {"resourceVersion": metadata["resourceVersion"]}
        await kube.patch(kind, metadata["name"], body, namespace=metadata.get("namespace", ""), subresource="status")


async def patch_unchanged(kube: Kube, kind: Kind, item: Object, change: Object, spec: Object | None = None) -> Object:
    """Changes metadata (and the spec with it), if the object is still at the version that was read."""
    metadata = item["metadata"]
    body: Object = {"metadata": {"resourceVersion": metadata["resourceVersion"], **change}}
    if spec:
        body["spec"] = spec
    return await kube.patch(kind, metadata["name"], body, namespace=metadata.get("namespace", ""))


async def add_finalizer(
    kube: Kube, kind: Kind, item: Object, annotated: Mapping[str, str] | None = None, *, spec: Object | None = None
) -> None:
    """Together with annotations and a change of the spec, in one write."""
    finalizers = item["metadata"].get("finalizers") or []
    change: Object = {"finalizers": finalizers if FINALIZER in finalizers else [*finalizers, FINALIZER]}
    if annotated:
        change["annotations"] = dict(annotated)
    await patch_unchanged(kube, kind, item, change, spec)


async def remove_finalizer(kube: Kube, kind: Kind, item: Object) -> None:
    others = [each for each in item["metadata"].get("finalizers") or [] if each != FINALIZER]
    await patch_unchanged(kube, kind, item, {"finalizers": others or None})


async def add_owner(kube: Kube, kind: Kind, item: Object, owner: Object, owner_kind: Kind) -> None:
    """Ties the item's lifetime to the owner's, as Cluster API's controllers do where they run."""
    if is_owned_by(item, uid(owner)) or is_being_deleted(owner):
        return
    references = [*(item["metadata"].get("ownerReferences") or []), owner_reference(owner, owner_kind)]
    await patch_unchanged(kube, kind, item, {"ownerReferences": references})


def find_by_infrastructure(items: Iterable[Object], kind: Kind, wanted: str) -> Object | None:
    """The MachinePool or Machine whose infrastructureRef names that object of ours."""
    for item in items:
        reference = infrastructure(item)
        if (reference.get("kind"), reference.get("name")) == (kind.name, wanted):
            return item
    return None
