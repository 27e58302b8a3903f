"""Pods that ask for a node of their own: a Machine and an NstanceMachine for each, gone when the pod is deleted or done.

Their name is made of the pod's name and UID, so making them twice makes them once. Where pod and machine are in one
namespace of one cluster the pod owns the machine, and Kubernetes itself clears up after us; elsewhere an owner would be
refused or, worse, looked for in the wrong place, so a label says it, and a machine whose pod is surely gone is deleted here.
"""

import contextlib

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.kube.queue import Queue
from nstance.operator.controllers import machines, resources
from nstance.operator.controllers.context import ControllerContext
from nstance.operator.shards.null_listener import NullListener

GROUP = "on-demand.nstance.dev/group"
CLUSTER = "on-demand.nstance.dev/cluster"  # where several operators look at one cluster's pods
INSTANCE_TYPE = "on-demand.nstance.dev/instance-type"
POD_UID = "nstance.dev/pod-uid"
POD = "nstance.dev/pod"
RETRY_FAILED = 60.0
STALE_RETRY = 5.0
_DONE = frozenset({"Succeeded", "Failed"})


def wants_node(pod: Object, cluster: str) -> bool:
    return (
        bool(resources.annotations(pod).get(GROUP))
        and resources.annotations(pod).get(CLUSTER, cluster) == cluster
        and not resources.is_being_deleted(pod)
        and resources.status(pod).get("phase") not in _DONE
    )


def trim_pod(pod: Object) -> Object:
    """What this controller needs of a pod; of one that asks for nothing, that it exists."""
    kept = ["name", "namespace", "uid", "resourceVersion", "deletionTimestamp"]
    kept += ["annotations"] if GROUP in resources.annotations(pod) else []
    metadata = {key: pod["metadata"][key] for key in kept if key in pod["metadata"]}
    status = {"phase": resources.status(pod).get("phase")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


def machine_name(pod: Object) -> str:
    return f"{resources.name(pod)[:52].rstrip('-.')}-{resources.uid(pod)[:8]}"


def machine_manifest(pod: Object, *, cluster: str, owned: bool) -> Object:
    name = machine_name(pod)
    metadata: Object = {
        "name": name,
        "labels": {resources.CLUSTER_LABEL: cluster, POD_UID: resources.uid(pod)},
        "annotations": {POD: f"{pod['metadata']['namespace']}/{resources.name(pod)}"},
    }
    if owned:
        metadata["ownerReferences"] = [resources.owner_reference(pod, kinds.POD)]
    reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": kinds.NSTANCE_MACHINE.name, "name": name}
    return {
        "apiVersion": kinds.MACHINE.api_version,
        "kind": kinds.MACHINE.name,
        "metadata": metadata,
        "spec": {"clusterName": cluster, "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference},
    }


def machine_spec(pod: Object) -> Object:
    """The spec of its NstanceMachine."""
    told = {
        key: resources.annotations(pod).get(noted) for key, noted in (("group", GROUP), ("instanceType", INSTANCE_TYPE))
    }
    return {key: value for key, value in told.items() if value}


def nstance_machine_manifest(pod: Object, owner: Object, *, cluster: str) -> Object:
    return {
        "apiVersion": kinds.NSTANCE_MACHINE.api_version,
        "kind": kinds.NSTANCE_MACHINE.name,
        "metadata": {
            "name": resources.name(owner),
            "labels": {resources.CLUSTER_LABEL: cluster, POD_UID: resources.uid(pod)},
            "ownerReferences": [resources.owner_reference(owner, kinds.MACHINE)],
        },
        "spec": machine_spec(pod),
    }


def _is_outdated(item: Object, pod: Object) -> bool:
    """The pod says something else by now, and nothing was made yet."""
    told = resources.spec(item)
    wanted = machine_spec(pod)
    return not machines.is_asked_for(item) and any(
        told.get(key) != wanted.get(key) for key in ("group", "instanceType")
    )


class Pods(NullListener):
    def __init__(self, parts: ControllerContext) -> None:
        self._kube, self._workload = parts.kube, parts.workload
        self._clock, self._events = parts.clock, parts.workload_events
        self._namespace, self._cluster = parts.settings.namespace, parts.settings.name
        self._together = parts.workload is parts.kube
        self._pods = parts.workload_mirrors.of(kinds.POD, trim=trim_pod)
        self._machines, self._items = (
            parts.mirrors.of(kind, namespace=self._namespace) for kind in (kinds.MACHINE, kinds.NSTANCE_MACHINE)
        )
        self._asking: dict[str, Object] = {}  # by uid: pods that want a node
        self.queue = Queue("pods", self._reconcile, clock=parts.clock, rng=parts.rng, report=parts.report)
        self._pods.listen(self._pod_changed)
        for mirror in (self._machines, self._items):
            mirror.listen(self._machine_changed)

    async def run(self) -> None:
        await self._pods.synced.wait()
        await self.queue.run()

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        uid = resources.uid(pod)
        asked = uid in self._asking
        if new is not None and wants_node(new, self._cluster):
            self._asking[uid] = new
        else:
            self._asking.pop(uid, None)
        if asked != (uid in self._asking) or (asked and old is not None and machine_spec(old) != machine_spec(pod)):
            self.queue.add(uid)

    def _machine_changed(self, old: Object | None, new: Object | None) -> None:
        if uid := resources.labels(new or old or {"metadata": {}}).get(POD_UID):
            self.queue.add(uid)

    async def _reconcile(self, uid: str) -> float | None:
        pod = self._asking.get(uid)
        made, items = (
            [each for each in mirror.objects.values() if resources.labels(each).get(POD_UID) == uid]
            for mirror in (self._machines, self._items)
        )
        if pod is None:
            if not self._pods.synced.is_set():
                return None
            await self._delete(made, items)
            return None
        leaving = [each for each in (*made, *items) if resources.is_being_deleted(each)]
        if leaving:
            return None  # their end brings the next look
        if not made or not items:
            # Kubernetes clears up after a pod that is gone, and that may be heard before the pod's own end: the pod is
            # read anew, or its machine would be made again and again for nobody.
            if not await self._still_asks(pod):
                return STALE_RETRY
            await self._make(pod)
            return None
        if any(_is_outdated(each, pod) for each in items):
            await self._delete(made, items)
            return None
        self._tell(pod, items)
        return await self._retry_failed(made, items)

    def _tell(self, pod: Object, items: list[Object]) -> None:
        """Whoever waits for the node looks at the pod, not at what was made for it."""
        for item in items:
            for each in resources.status(item).get("conditions", ()):
                if each["type"] == "Ready" and each["reason"] in machines.FAILURE_REASONS:
                    self._events.note(pod, "NodeNotMade", f"{resources.name(item)}: {each['message']}", warning=True)

    async def _still_asks(self, pod: Object) -> bool:
        try:
            found = await self._workload.get(kinds.POD, resources.name(pod), namespace=pod["metadata"]["namespace"])
        except errors.NotFoundError:
            return False
        return resources.uid(found) == resources.uid(pod) and wants_node(found, self._cluster)

    async def _make(self, pod: Object) -> None:
        owned = self._together and pod["metadata"].get("namespace") == self._namespace
        wanted = machine_manifest(pod, cluster=self._cluster, owned=owned)
        try:
            owner = await self._kube.create(kinds.MACHINE, wanted, namespace=self._namespace)
            self._events.note(pod, "NodeRequested", f"Machine {resources.name(owner)} was made for this pod")
        except errors.AlreadyExistsError:
            owner = await self._kube.get(kinds.MACHINE, resources.name(wanted), namespace=self._namespace)
        with contextlib.suppress(errors.AlreadyExistsError):
            item = nstance_machine_manifest(pod, owner, cluster=self._cluster)
            await self._kube.create(kinds.NSTANCE_MACHINE, item, namespace=self._namespace)

    async def _retry_failed(self, made: list[Object], items: list[Object]) -> float | None:
        """An instance that could not be made is tried anew, with another ID, after a while."""
        for item in items:
            for each in resources.status(item).get("conditions", ()):
                if each["type"] == "Ready" and each["reason"] == machines.CREATE_FAILED:
                    age = self._clock.wall() - resources.seconds(each["lastTransitionTime"])
                    if age < RETRY_FAILED:
                        return RETRY_FAILED - age
                    await self._delete(made, items)
        return None

    async def _delete(self, made: list[Object], items: list[Object]) -> None:
        for kind, found in ((kinds.MACHINE, made), (kinds.NSTANCE_MACHINE, items)):
            for each in found:
                if not resources.is_being_deleted(each):
                    with contextlib.suppress(errors.NotFoundError, errors.ConflictError):
                        await self._kube.delete(
                            kind, resources.name(each), namespace=self._namespace, uid=resources.uid(each)
                        )
