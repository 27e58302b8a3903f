"""Reading and writing Kubernetes objects as our controllers do: conditions, owners, finalizers, and status that is written
only when it changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from nstance.kube.kinds import Kind
from nstance.kube.port import Kube, Object

FINALIZER = "nstance.dev/operator"
PAUSED = "cluster.x-k8s.io/paused"
CLUSTER_LABEL = "cluster.x-k8s.io/cluster-name"


def name(item: Object) -> str:
    return cast(str, item["metadata"]["name"])


def uid(item: Object) -> str:
    return cast(str, item["metadata"].get("uid", ""))


def as_object(value: object) -> Object:
    """An object within another one. What is something else counts as empty: without CRDs, dev-k8s takes any JSON, and one
    object that is not of its kind's shape must not hold up all others."""
    return value if isinstance(value, dict) else {}


def spec(item: Object) -> Object:
    return as_object(item.get("spec"))


def status(item: Object) -> Object:
    return as_object(item.get("status"))


def provider_id(item: Object) -> str:
    found = spec(item).get("providerID")
    return found if isinstance(found, str) else ""


def infrastructure(item: Object) -> Object:
    """What a Machine or a MachinePool refers to."""
    told = spec(item)
    return as_object((spec(as_object(told["template"])) if "template" in told else told).get("infrastructureRef"))


def annotations(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def labels(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def find_malformed_field(told: Object, *, required: Iterable[str], texts: Iterable[str]) -> str:
    """What in a spec is not text, or not there. Without our CRDs, dev-k8s takes any JSON."""
    for key in (*required, *texts):
        value = told.get(key)
        if (not value and key in required) or not isinstance(value, str | None):
            return f"spec.{key}: expected text, found {value!r}"
    values = told.get("vars") or {}
    if not isinstance(values, Mapping) or not all(isinstance(each, str) for each in values.values()):
        return f"spec.vars: expected a map of texts, found {values!r}"
    return ""


def is_size(value: object) -> bool:
    """A number of instances, as the shards take it."""
    return type(value) is int and 0 <= value < 2**31


def is_being_deleted(item: Object) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def has_finalizer(item: Object) -> bool:
    """Whether we keep it from going away."""
    return FINALIZER in (item["metadata"].get("finalizers") or [])


def is_paused(cluster: Object | None, *items: Object | None) -> bool:
    """Cluster API's way to say hands off: on one of the objects or on their Cluster. What is deleted meanwhile stays until
    it is resumed, as with Cluster API's own controllers."""
    return any(item is not None and PAUSED in annotations(item) for item in items) or (
        cluster is not None and bool(spec(cluster).get("paused"))
    )


def has_cluster_api_controllers(item: Object | None, cluster: Object | None) -> bool:
    """Whether Cluster API's own controllers look after it: they set a phase first of all, the Cluster's before any other."""
    return any(each is not None and bool(status(each).get("phase")) for each in (item, cluster))


def owner_reference(item: Object, kind: Kind, *, controller: bool = False) -> Object:
    """An ownerReference to it."""
    reference: Object = {"apiVersion": kind.api_version, "kind": kind.name, "name": name(item), "uid": uid(item)}
    return reference | ({"controller": True, "blockOwnerDeletion": True} if controller else {})


def is_owned_by(item: Object, owned_by: str) -> bool:
    return any(each.get("uid") == owned_by for each in item["metadata"].get("ownerReferences") or [])


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(stamp: str) -> float:
    """Since 1970, of a timestamp as Kubernetes writes it."""
    return datetime.fromisoformat(stamp).timestamp()


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    holds: bool | None  # None: unknown
    reason: str
    message: str = ""


def merge_conditions(
    old: Iterable[Object] | None, said: Iterable[Condition], *, generation: int, now: float
) -> list[Object]:
    """The conditions with these in them. The time of a transition changes only with the status, and conditions of
    other people stay."""
    found = {each["type"]: each for each in old or ()}
    for each in said:
        value = {True: "True", False: "False", None: "Unknown"}[each.holds]
        before = found.get(each.type)
        same = before is not None and before.get("status") == value
        found[each.type] = {
            "type": each.type,
            "status": value,
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": before["lastTransitionTime"] if before is not None and same else timestamp(now),
            "observedGeneration": generation,
        }
    return list(found.values())


def merge_patch(old: Mapping[str, Any], wanted: Mapping[str, Any], *, whole: bool = False) -> Object:
    """The merge patch that gives `old` the fields of `wanted`; empty if it has them. Maps inside become exactly what is
    wanted (`whole`): a merge patch keeps keys that it does not name, so those that went are named as null."""
    change: Object = dict.fromkeys(old.keys() - wanted.keys()) if whole else {}
    for key, value in wanted.items():
        held = old.get(key)
        if isinstance(value, Mapping):
            inner = merge_patch(held if isinstance(held, Mapping) else {}, value, whole=True)
            if inner or not isinstance(held, Mapping):
                change[key] = inner
        elif held != value:
            change[key] = value
    return change


async def write_status(kube: Kube, kind: Kind, item: Object, wanted: Object, *, unchanged: bool = False) -> None:
    """Only when something changes: a status that is written for nothing wakes everybody who watches. `unchanged`: and only
    if nobody changed the object since."""
    if change := merge_patch(status(item), wanted):
        metadata = item["metadata"]
        body: Object = {"status": change}
        if unchanged:
            body["metadata"] = {"resourceVersion": metadata["resourceVersion"]}
        await kube.patch(kind, metadata["name"], body, namespace=metadata.get("namespace", ""), subresource="status")


async def add_finalizer(
    kube: Kube, kind: Kind, item: Object, annotated: Mapping[str, str] | None = None, *, spec: Object | None = None
) -> Object:
    """Adds our finalizer (and annotations and a change of the spec with it, in one write), if nobody changed the object
    since."""
    metadata = item["metadata"]
    finalizers = metadata.get("finalizers") or []
    change: Object = {
        "resourceVersion": metadata["resourceVersion"],
        "finalizers": finalizers if FINALIZER in finalizers else [*finalizers, FINALIZER],
    }
    if annotated:
        change["annotations"] = dict(annotated)
    body: Object = {"metadata": change} | ({"spec": spec} if spec else {})
    return await kube.patch(kind, metadata["name"], body, namespace=metadata.get("namespace", ""))


async def add_owner(kube: Kube, kind: Kind, item: Object, owner_item: Object, owner_kind: Kind) -> None:
    """Makes the owner's end the item's end too, as Cluster API's controllers do where they run."""
    if is_owned_by(item, uid(owner_item)) or is_being_deleted(owner_item):
        return
    metadata = item["metadata"]
    change = {
        "resourceVersion": metadata["resourceVersion"],
        "ownerReferences": [*(metadata.get("ownerReferences") or []), owner_reference(owner_item, owner_kind)],
    }
    await kube.patch(kind, metadata["name"], {"metadata": change}, namespace=metadata.get("namespace", ""))


async def remove_finalizer(kube: Kube, kind: Kind, item: Object) -> None:
    """Removes our finalizer, if nobody changed the object since."""
    metadata = item["metadata"]
    left = [each for each in metadata.get("finalizers") or [] if each != FINALIZER]
    change = {"resourceVersion": metadata["resourceVersion"], "finalizers": left or None}
    await kube.patch(kind, metadata["name"], {"metadata": change}, namespace=metadata.get("namespace", ""))


def find_by_infrastructure(items: Iterable[Object], kind: Kind, wanted: str) -> Object | None:
    """The MachinePool or Machine whose infrastructure is that object of ours."""
    for item in items:
        reference = infrastructure(item)
        if (reference.get("kind"), reference.get("name")) == (kind.name, wanted):
            return item
    return None
