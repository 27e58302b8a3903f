"""The Cluster, the NstanceCluster behind it, and the kubeconfig that Cluster API reads nodes with.

All three are made if they are missing and repaired where they differ in what is ours to say. The kubeconfig holds a token
of one hour, so that a Secret that leaks is soon worth nothing; it is made anew when two thirds of that are over. Where
the workload cluster is elsewhere, the Secret is the administrator's, and so is one that somebody else has made.
"""

import base64
import json
import logging
from typing import Any

from nstance.kube import errors, kinds
from nstance.kube.port import Object
from nstance.kube.queue import Queue
from nstance.operator import options, workload_cluster
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import ControllerContext
from nstance.operator.shards.null_listener import NullListener

log = logging.getLogger(__name__)

TOKEN_SECONDS = 3600
RETRY_SECONDS = 30.0
INITIALIZED = "ControlPlaneInitialized"  # a condition of Cluster API's Cluster
MANAGED_BY = {"app.kubernetes.io/managed-by": "nstance-operator"}
EXPIRES = "nstance.dev/token-expires"  # annotation: seconds since 1970
ACCOUNT = "nstance.dev/service-account"

OBJECTS, KUBECONFIG = "objects", "kubeconfig"


class Clusters(NullListener):
    def __init__(self, parts: ControllerContext) -> None:
        self._parts = parts
        self._settings = settings = parts.settings
        self._labels = {resources.CLUSTER_LABEL: settings.name, **MANAGED_BY}
        self._complaint = ""
        self._queue: Queue[str] = Queue(
            "clusters", self._reconcile, clock=parts.clock, rng=parts.rng, workers=2, report=parts.report
        )
        for kind in (kinds.CLUSTER, kinds.NSTANCE_CLUSTER):
            mirror = parts.mirrors.of(kind, namespace=settings.namespace)
            mirror.listen(lambda old, new: self._seen(old, new, OBJECTS))
        if settings.endpoint is None:
            secrets = parts.mirrors.of(
                kinds.SECRET,
                namespace=settings.namespace,
                fields=f"metadata.name={workload_cluster.secret_name(settings.name)}",
            )
            secrets.listen(lambda old, new: self._seen(old, new, KUBECONFIG))

    async def run(self) -> None:
        self._queue.add(OBJECTS)
        if self._settings.endpoint is None:
            self._queue.add(KUBECONFIG)
        await self._queue.run()

    def shard_changed(self, shard: str) -> None:
        self._queue.add(OBJECTS)

    def _seen(self, old: Object | None, new: Object | None, what: str) -> None:
        name = (new or old or {})["metadata"]["name"]
        if name in (self._settings.name, workload_cluster.secret_name(self._settings.name)):
            self._queue.add(what)

    async def _reconcile(self, what: str) -> float | None:
        if what == KUBECONFIG:
            return await self._reconcile_kubeconfig()
        cluster = await self._cluster()
        if resources.is_being_deleted(cluster):
            return None  # Cluster API waits until what is behind it is gone: made anew, it would be waited for for ever
        await self._say_initialized(cluster)
        behind = await self._nstance_cluster(cluster)
        await self._status(behind)
        return None

    # ---- Cluster and NstanceCluster

    async def _cluster(self) -> Object:
        body = {
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace, "labels": self._labels},
            "spec": {
                "infrastructureRef": {
                    "apiGroup": kinds.INFRASTRUCTURE,
                    "kind": kinds.NSTANCE_CLUSTER.name,
                    "name": self._settings.name,
                },
                "controlPlaneEndpoint": self._endpoint(),
            },
        }
        return await self._there(kinds.CLUSTER, body)

    async def _nstance_cluster(self, cluster: Object) -> Object:
        body = {
            "metadata": {
                "name": self._settings.name,
                "namespace": self._settings.namespace,
                "labels": self._labels,
                "ownerReferences": [resources.owner_reference(cluster, kinds.CLUSTER, controller=True)],
            },
            "spec": {"controlPlaneEndpoint": self._endpoint()},
        }
        found = await self._there(kinds.NSTANCE_CLUSTER, body)
        if found["metadata"].get("deletionTimestamp") or found.get("spec") == body["spec"]:
            return found
        return await self._parts.kube.patch(
            kinds.NSTANCE_CLUSTER, self._settings.name, {"spec": body["spec"]}, namespace=self._settings.namespace
        )

    async def _there(self, kind: kinds.Kind, body: Object) -> Object:
        kube, name, namespace = self._parts.kube, self._settings.name, self._settings.namespace
        try:
            return await kube.get(kind, name, namespace=namespace)
        except errors.NotFoundError:
            log.info("made", extra={"kind": kind.name, "object": name})
        try:
            return await kube.create(kind, body, namespace=namespace)
        except errors.AlreadyExistsError:
            return await kube.get(kind, name, namespace=namespace)

    async def _say_initialized(self, cluster: Object) -> None:
        """Cluster API waits for a control plane machine of its own before it looks at nodes. Here the control plane is
        there already: it is what we talk to."""
        conditions = resources.status(cluster).get("conditions")
        if any(each["type"] == INITIALIZED and each["status"] == "True" for each in conditions or ()):
            return
        said = resources.Condition(
            INITIALIZED, True, "Initialized", "the cluster exists; Nstance does not make its control plane"
        )
        generation = cluster["metadata"].get("generation", 1)
        told = {
            "initialization": {
                **(resources.status(cluster).get("initialization") or {}),
                "controlPlaneInitialized": True,
            },
            "conditions": resources.merge_conditions(
                conditions, [said], generation=generation, now=self._parts.clock.wall()
            ),
        }
        # Cluster API writes conditions of the same list: not over what it wrote since.
        await resources.write_status(self._parts.kube, kinds.CLUSTER, cluster, told, unchanged=True)

    async def _status(self, found: Object) -> None:
        names = self._parts.shards.names()
        troubles = {}
        for name in names:
            shard = self._parts.shards.get(name)
            if shard is not None and not shard.synced:
                troubles[name] = shard.trouble
        before = resources.status(found)
        ready = resources.Condition(
            "Ready",
            not troubles,
            "ShardsUnreachable" if troubles else "ShardsReachable",
            "; ".join(f"shard {name}: {why}" for name, why in troubles.items())[:32_000]
            or f"all {len(names)} shards answer",
        )
        provisioned = bool((before.get("initialization") or {}).get("provisioned")) or len(troubles) < len(names)
        told = {
            "ready": not troubles,
            "initialization": {"provisioned": True} if provisioned else {},
            "failureDomains": [{"name": name, "controlPlane": False} for name in names],
            "conditions": resources.merge_conditions(
                before.get("conditions"),
                [ready],
                generation=found["metadata"].get("generation", 1),
                now=self._parts.clock.wall(),
            ),
        }
        await resources.write_status(self._parts.kube, kinds.NSTANCE_CLUSTER, found, told)

    def _endpoint(self) -> Object:
        found = self._settings.endpoint or options.api_server(self._settings.server)
        return {"host": found.host, "port": found.port}

    # ---- the kubeconfig Secret

    async def _reconcile_kubeconfig(self) -> float | None:
        kube, namespace = self._parts.kube, self._settings.namespace
        name = workload_cluster.secret_name(self._settings.name)
        try:
            secret: Object | None = await kube.get(kinds.SECRET, name, namespace=namespace)
        except errors.NotFoundError:
            secret = None
        if secret is not None and not self._is_ours(secret):
            self._complain(f"Secret {namespace}/{name} was not made by the operator and is left alone")
            return None
        now = self._parts.clock.wall()
        due = self._renewal(secret)
        if now < due:
            return due - now
        try:
            token = await kube.request_token(self._settings.service_account, namespace=namespace, seconds=TOKEN_SECONDS)
        except (errors.NotFoundError, errors.ForbiddenError, errors.InvalidError) as problem:
            self._complain(
                f"no token for ServiceAccount {namespace}/{self._settings.service_account}: {problem}; "
                "see the manifests in config/rbac"
            )
            return RETRY_SECONDS
        self._complaint = ""
        body: Object = {
            "type": "cluster.x-k8s.io/secret",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": self._labels,
                "annotations": {EXPIRES: str(int(token.expires)), ACCOUNT: self._settings.service_account},
            },
            "data": {
                workload_cluster.KUBECONFIG_KEY: base64.b64encode(self._kubeconfig(token.value).encode()).decode()
            },
        }
        if secret is None:
            await kube.create(kinds.SECRET, body, namespace=namespace)
        else:
            metadata = {**body["metadata"], "resourceVersion": secret["metadata"]["resourceVersion"]}
            await kube.patch(kinds.SECRET, name, {"metadata": metadata, "data": body["data"]}, namespace=namespace)
        log.info("the kubeconfig for Cluster API has a new token", extra={"secret": f"{namespace}/{name}"})
        return max(1.0, self._due(token.expires) - now)

    def _is_ours(self, secret: Object) -> bool:
        labels = secret["metadata"].get("labels") or {}
        return all(labels.get(key) == value for key, value in MANAGED_BY.items())

    def _renewal(self, secret: Object | None) -> float:
        """When a new token is due; 0: at once, because the Secret does not lead to our API server or is not readable."""
        if secret is None:
            return 0.0
        annotations = secret["metadata"].get("annotations") or {}
        try:
            expires = float(annotations[EXPIRES])
            content = json.loads(base64.b64decode(secret["data"][workload_cluster.KUBECONFIG_KEY]))
            same = content["clusters"] == json.loads(self._kubeconfig(""))["clusters"]
        except (KeyError, ValueError, TypeError):
            return 0.0
        return self._due(expires) if same and annotations.get(ACCOUNT) == self._settings.service_account else 0.0

    @staticmethod
    def _due(expires: float) -> float:
        return expires - TOKEN_SECONDS / 3

    def _kubeconfig(self, token: str) -> str:
        """JSON is YAML too."""
        name = self._settings.name
        cluster: dict[str, Any] = {"server": self._settings.server}
        ca = self._settings.server_ca()
        if ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": name, "cluster": cluster}],
                "users": [{"name": name, "user": {"token": token}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "current-context": name,
            },
            indent=2,
        )

    def _complain(self, reason: str) -> None:
        """Once for each new reason."""
        if reason != self._complaint:
            self._complaint = reason
            log.warning("the kubeconfig for Cluster API is not kept", extra={"reason": reason})
