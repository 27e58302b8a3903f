"""Gives pods that ask for it a node of their own: a Machine and an NstanceMachine, deleted when the pod is deleted or done.

Their name consists of the pod's name and UID, so creating them twice creates them once. If pod and machine are in one
namespace of one cluster, the pod owns the machine and Kubernetes cleans up. Elsewhere the garbage collector would look for
the owner in the wrong place, so a label refers to the pod, and this controller deletes a machine whose pod is gone.

A pod with our scheduling gate is bound to its node: it waits, and when its node is there it gets a node selector and loses
the gate. Kubernetes allows both only for gated pods. Every step is an event on the pod.

Only pods of selected namespaces get a node: otherwise everybody who may create a pod could order VMs. A namespace that is no
longer selected keeps the machines that it has.
"""

import contextlib
from collections.abc import Iterator

from nstance.kube import errors, kinds
from nstance.kube.mirror import Mirror
from nstance.kube.port import Object, find
from nstance.operator.controllers import machine_objects, machines, resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.nodes import INSTANCE_LABEL
from nstance.operator.controllers.pod_objects import DONE, GATE, GROUP, trim_pod

CLUSTER = "on-demand.nstance.dev/cluster"  # for several operators that watch one cluster's pods
INSTANCE_TYPE = "on-demand.nstance.dev/instance-type"
POD_UID = "nstance.dev/pod-uid"
STALE_RETRY_SECONDS = 5.0
_SPEC_ANNOTATIONS = (("group", GROUP), ("instanceType", INSTANCE_TYPE))


def wants_node(pod: Object, cluster: str) -> bool:
    return (
        bool(resources.annotations(pod).get(GROUP))
        and resources.annotations(pod).get(CLUSTER, cluster) == cluster
        and not resources.is_being_deleted(pod)
        and resources.status(pod).get("phase") not in DONE
    )


def has_gate(pod: Object) -> bool:
    return any(each.get("name") == GATE for each in resources.spec(pod).get("schedulingGates") or ())


def machine_name(pod: Object) -> str:
    return f"{resources.name(pod)[:52].rstrip('-.')}-{resources.uid(pod)[:8]}"


def machine_manifest(pod: Object, *, cluster: str, is_owned: bool) -> Object:
    name = machine_name(pod)
    metadata: Object = {
        "name": name,
        "labels": {resources.CLUSTER_LABEL: cluster, POD_UID: resources.uid(pod)},
        "annotations": {
            machines.POD_ANNOTATION: f"{pod['metadata']['namespace']}/{resources.name(pod)}",
            **machine_objects.DRAINED_BY_OPERATOR,
        },
    }
    if is_owned:
        metadata["ownerReferences"] = [resources.owner_reference(pod, kinds.POD)]
    reference = {"apiGroup": kinds.INFRASTRUCTURE, "kind": kinds.NSTANCE_MACHINE.name, "name": name}
    spec = {"clusterName": cluster, "bootstrap": {"dataSecretName": ""}, "infrastructureRef": reference}
    return resources.manifest(kinds.MACHINE, metadata, spec)


def machine_spec(pod: Object) -> Object:
    """The spec of its NstanceMachine."""
    annotations = resources.annotations(pod)
    return {key: annotations[noted] for key, noted in _SPEC_ANNOTATIONS if annotations.get(noted)}


def nstance_machine_manifest(pod: Object, owner: Object, *, cluster: str) -> Object:
    metadata = {
        "name": resources.name(owner),
        "labels": {resources.CLUSTER_LABEL: cluster, POD_UID: resources.uid(pod)},
        "annotations": {machines.POD_ANNOTATION: f"{pod['metadata']['namespace']}/{resources.name(pod)}"},
        "ownerReferences": [resources.owner_reference(owner, kinds.MACHINE)],
    }
    return resources.manifest(kinds.NSTANCE_MACHINE, metadata, machine_spec(pod))


def _is_outdated(item: Object, pod: Object) -> bool:
    """The pod's annotations changed before an instance was requested."""
    current, wanted = resources.spec(item), machine_spec(pod)
    return not machines.is_requested(item) and any(current.get(key) != wanted.get(key) for key, _ in _SPEC_ANNOTATIONS)


class Pods(Controller):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._events = context.workload_events
        self._cluster_name = context.settings.name
        self._pods = context.workload_mirrors.of(kinds.POD, trim=trim_pod)
        self._machines, self._items = map(self._mirror, (kinds.MACHINE, kinds.NSTANCE_MACHINE))
        self._requesting: dict[str, Object] = {}  # by uid: pods that want a node
        self._steps: dict[str, tuple[str, str]] = {}  # by uid: the last event about its node
        selector = context.settings.on_demand_namespaces
        self._namespaces: Mirror | None = None  # those that may order nodes; None: all or none
        if selector:
            self._namespaces = context.workload_mirrors.of(kinds.NAMESPACE, labels=selector, trim=_trim_namespace)
        if self._namespaces is not None:
            self._namespaces.listen(self._on_namespace_change)
        self.queue = context.queue("pods", self._reconcile)
        self._pods.listen(self._on_pod_change)
        for mirror in (self._machines, self._items):
            mirror.listen(self._on_machine_change)

    async def run(self) -> None:
        await self._pods.synced.wait()
        if self._namespaces is not None:
            await self._namespaces.synced.wait()
        await self.queue.run()

    def _on_pod_change(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        uid = resources.uid(pod)
        was_requesting = uid in self._requesting
        if new is not None and wants_node(new, self._cluster_name):
            self._requesting[uid] = new
        else:
            self._requesting.pop(uid, None)
            self._steps.pop(uid, None)
        is_changed = old is not None and machine_spec(old) != machine_spec(pod)
        if was_requesting != (uid in self._requesting) or (was_requesting and is_changed):
            self.queue.add(uid)

    def _on_namespace_change(self, old: Object | None, new: Object | None) -> None:
        if old is None and new is not None:
            for uid, pod in self._requesting.items():
                if pod["metadata"].get("namespace") == resources.name(new):
                    self.queue.add(uid)

    def _refusal(self, pod: Object) -> str:
        """Why its namespace may not order nodes; empty if it may."""
        selector = self._context.settings.on_demand_namespaces
        if selector is None or self._namespaces is None:
            return "" if selector == "" else "on-demand nodes are turned off (--disable-on-demand-pods)"
        namespace = pod["metadata"].get("namespace", "")
        if ("", namespace) in self._namespaces.objects:
            return ""
        return f"the namespace {namespace} may not request nodes: an administrator has to label it with {selector}"

    def _on_machine_change(self, old: Object | None, new: Object | None) -> None:
        if uid := resources.labels(new or old or {"metadata": {}}).get(POD_UID):
            self.queue.add(uid)

    async def _reconcile(self, uid: str) -> float | None:
        pod = self._requesting.get(uid)
        found, items = (
            [each for each in mirror.objects.values() if resources.labels(each).get(POD_UID) == uid]
            for mirror in (self._machines, self._items)
        )
        if pod is None:
            if self._pods.synced.is_set():
                await self._delete_all(found, items)
            return None
        if any(resources.is_being_deleted(each) for each in (*found, *items)):
            return None  # the end of the deletion triggers the next reconcile
        if not found or not items:
            # Kubernetes cleans up after a deleted pod, and the machine's deletion may arrive here before the pod's own.
            # So the pod is read again, or its machine would be created over and over.
            if not await self._still_wants_node(pod):
                return STALE_RETRY_SECONDS
            if refusal := self._refusal(pod):
                self._events.note(pod, "NodeRefused", refusal, warning=True)
                return None  # a label of the namespace triggers the next reconcile
            await self._create(pod)
            return None
        if any(_is_outdated(each, pod) for each in items):
            await self._delete_all(found, items)
            return None
        for item, ready in _ready_conditions(items):  # on the pod: that is what its owner looks at
            if ready["reason"] in machines.FAILURE_REASONS:
                self._events.note(pod, "NodeNotMade", f"{resources.name(item)}: {ready['message']}", warning=True)
        await self._follow(pod, found[0], items[0])
        return await self._retry_failed(found, items)

    async def _follow(self, pod: Object, machine: Object, item: Object) -> None:
        """Tells the pod how far its node is, and binds it when the node is there."""
        status, node = resources.status(item), resources.as_object(resources.status(machine).get("nodeRef")).get("name")
        instance = status.get("instanceID", "")
        if node and instance:
            step = "NodeJoined", f"{instance} is the node {node}"
            if has_gate(pod):
                await self._bind(pod, instance)
                step = "NodeBound", f"the node {node} is there, the pod may be scheduled to it"
        elif instance:
            step = "NodeStarting", f"{instance} of shard {status.get('shard', '')} is {status.get('state', '')}"
        else:
            return
        if self._steps.get(resources.uid(pod)) != step:
            self._steps[resources.uid(pod)] = step
            self._events.note(pod, *step)

    async def _bind(self, pod: Object, instance: str) -> None:
        others = [each for each in resources.spec(pod)["schedulingGates"] if each.get("name") != GATE]
        spec = {"schedulingGates": others or None, "nodeSelector": {INSTANCE_LABEL: instance}}
        body = {"metadata": {"uid": resources.uid(pod)}, "spec": spec}
        with contextlib.suppress(errors.NotFoundError, errors.ConflictError):  # gone, or another pod has its name
            namespace = pod["metadata"]["namespace"]
            await self._context.workload.patch(kinds.POD, resources.name(pod), body, namespace=namespace)

    async def _still_wants_node(self, pod: Object) -> bool:
        kube, namespace = self._context.workload, pod["metadata"]["namespace"]
        found = await find(kube, kinds.POD, resources.name(pod), namespace=namespace)
        return (
            found is not None and resources.uid(found) == resources.uid(pod) and wants_node(found, self._cluster_name)
        )

    async def _create(self, pod: Object) -> None:
        is_same_cluster = self._context.workload is self._kube
        is_owned = is_same_cluster and pod["metadata"].get("namespace") == self._namespace
        body = machine_manifest(pod, cluster=self._cluster_name, is_owned=is_owned)
        try:
            owner = await self._kube.create(kinds.MACHINE, body, namespace=self._namespace)
            self._events.note(pod, "NodeRequested", f"Machine {resources.name(owner)} was created for this pod")
        except errors.AlreadyExistsError:
            owner = await self._kube.get(kinds.MACHINE, resources.name(body), namespace=self._namespace)
        with contextlib.suppress(errors.AlreadyExistsError):
            item = nstance_machine_manifest(pod, owner, cluster=self._cluster_name)
            await self._kube.create(kinds.NSTANCE_MACHINE, item, namespace=self._namespace)

    async def _retry_failed(self, found: list[Object], items: list[Object]) -> float | None:
        """After a while, replaces a machine whose instance could not be created. The new one has another ID."""
        for _, ready in _ready_conditions(items):
            if ready["reason"] == machine_objects.CREATE_FAILED:
                age = self._clock.wall() - resources.seconds(ready["lastTransitionTime"])
                wait = self._context.settings.waits.failed_pod_retry
                if age < wait:
                    return wait - age
                await self._delete_all(found, items)
        return None

    async def _delete_all(self, found: list[Object], items: list[Object]) -> None:
        for kind, some in ((kinds.MACHINE, found), (kinds.NSTANCE_MACHINE, items)):
            for each in some:
                await self._delete(kind, each)


def _ready_conditions(items: list[Object]) -> Iterator[tuple[Object, Object]]:
    for item in items:
        if ready := resources.condition(item, "Ready"):
            yield item, ready


def _trim_namespace(namespace: Object) -> Object:
    kept = ("name", "uid", "resourceVersion", "deletionTimestamp")
    metadata = {key: namespace["metadata"][key] for key in kept if key in namespace["metadata"]}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
