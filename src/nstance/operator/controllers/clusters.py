"""Keeps the Cluster, the NstanceCluster and NstanceControlPlane behind it, and the kubeconfig Secret with which Cluster
API reads nodes.

All are created if missing, and repaired in the fields that are ours. The exception is a Cluster that existed and is gone:
somebody deleted it, so nothing is created until a person creates a Cluster of its name. Its UID is in an annotation of the
Secret with the operator's key, because another replica must know it too.

The kubeconfig holds a token of one hour, so that a leaked Secret soon becomes useless; it is renewed after two thirds of
that. The Secret of a separate workload cluster is the administrator's, and so is one that somebody else created.
"""

import asyncio
import base64
import json
import logging
from typing import Any

from nstance.kube import errors, kinds
from nstance.kube.port import Object, create_or_get, find
from nstance.operator import options, secrets, workload_cluster
from nstance.operator.controllers import resources
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.resources import Condition

log = logging.getLogger(__name__)

TOKEN_SECONDS = 3600
RETRY_SECONDS = 30.0
MAX_MESSAGE_LENGTH = 32_000
INITIALIZED = "ControlPlaneInitialized"  # a condition of Cluster API's Cluster
EXPIRES_ANNOTATION = "nstance.dev/token-expires"  # seconds since 1970
CLUSTER_ANNOTATION = "nstance.dev/cluster-uid"  # of the Secret with the operator's key
EXTERNALLY_MANAGED = "cluster.x-k8s.io/managed-by"  # Cluster API's: somebody else writes this NstanceCluster
ACCOUNT_ANNOTATION = "nstance.dev/service-account"

OBJECTS, KUBECONFIG = "objects", "kubeconfig"  # keys of the queue


class Clusters(Controller):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._settings = settings = context.settings
        self._labels = {resources.CLUSTER_LABEL: settings.name, **secrets.MANAGED_BY}
        self._secret_name = workload_cluster.secret_name(settings.name)
        self._last_problem = ""
        self._recorded: str | None = None  # UID of the Cluster in the Secret; None: not read yet
        self._nodes = context.workload_mirrors.of(kinds.NODE)
        self._queue = context.queue("clusters", self._reconcile, workers=2)
        for kind in (kinds.CLUSTER, kinds.NSTANCE_CLUSTER, kinds.NSTANCE_CONTROL_PLANE):
            self._mirror(kind).listen(lambda old, new: self._on_change(old, new, OBJECTS))  # also pauses
        if settings.endpoint is None:
            mirror = context.mirrors.of(
                kinds.SECRET, namespace=settings.namespace, fields=f"metadata.name={self._secret_name}"
            )
            mirror.listen(lambda old, new: self._on_change(old, new, KUBECONFIG))
            self._clusters.listen(
                lambda old, new: self._on_change(old, new, KUBECONFIG) if old is None or new is None else None
            )

    async def run(self) -> None:
        self._queue.add(OBJECTS)
        if self._settings.endpoint is None:
            self._queue.add(KUBECONFIG)
        await asyncio.gather(self._queue.run(), self._add_when_nodes_are_synced())

    async def _add_when_nodes_are_synced(self) -> None:
        await self._nodes.synced.wait()
        self._queue.add(OBJECTS)

    def on_shard_change(self, shard: str) -> None:
        self._queue.add(OBJECTS)

    def _on_change(self, old: Object | None, new: Object | None, key: str) -> None:
        if resources.name(new or old or {}) in (self._settings.name, self._secret_name):
            self._queue.add(key)

    async def _reconcile(self, key: str) -> float | None:
        if key == KUBECONFIG:
            return await self._reconcile_kubeconfig()
        cluster = await self._ensure_cluster()
        if cluster is None or resources.is_being_deleted(cluster):
            return None  # Cluster API waits for the objects behind it to go: created again, it would wait forever
        await self._set_initialized(cluster)
        is_available = await self._update_control_plane(cluster)
        found = await self._ensure_nstance_cluster(cluster)
        if resources.is_paused(cluster, found):
            await self._show_paused(kinds.NSTANCE_CLUSTER, found)
        elif EXTERNALLY_MANAGED not in resources.annotations(found):
            await self._update_status(found)
        return None if is_available and self._settings.endpoint is None else RETRY_SECONDS

    # ---- Cluster, NstanceCluster, NstanceControlPlane

    async def _ensure_cluster(self) -> Object | None:
        """None: it was deleted on purpose."""
        found = await self._get(kinds.CLUSTER)
        recorded = await self._read_record()
        if found is None and recorded:
            self._warn(
                f"the Cluster {self._settings.name} was deleted and is not created again; to go on, create a Cluster of "
                f"that name, or remove the annotation {CLUSTER_ANNOTATION} of the Secret {self._settings.key_secret} and "
                "restart the operator",
                "Cluster was deleted, nothing is created",
            )
            return None
        control_plane = self._reference(kinds.NSTANCE_CONTROL_PLANE)
        if found is None:
            spec = {
                "infrastructureRef": self._reference(kinds.NSTANCE_CLUSTER),
                "controlPlaneRef": control_plane,
                "controlPlaneEndpoint": self._endpoint(),
            }
            found = await self._get_or_create(kinds.CLUSTER, {}, spec)
        if not resources.is_being_deleted(found):
            if not resources.spec(found).get("controlPlaneRef") and not resources.is_paused(found):
                await self._patch_spec(kinds.CLUSTER, found, {"controlPlaneRef": control_plane})
            await self._record(resources.uid(found))
        return found

    def _reference(self, kind: kinds.Kind) -> Object:
        return {"apiGroup": kind.group, "kind": kind.name, "name": self._settings.name}

    async def _read_record(self) -> str:
        """The UID of the Cluster that existed; empty: there was none yet."""
        if self._recorded is None:
            secret = await find(self._kube, kinds.SECRET, self._settings.key_secret, namespace=self._namespace)
            if secret is None:
                return ""
            self._recorded = resources.annotations(secret).get(CLUSTER_ANNOTATION, "")
        return self._recorded

    async def _record(self, uid: str) -> None:
        if self._recorded in (None, uid):  # None: there is no Secret
            return
        change = {"metadata": {"annotations": {CLUSTER_ANNOTATION: uid}}}
        await self._kube.patch(kinds.SECRET, self._settings.key_secret, change, namespace=self._namespace)
        self._recorded = uid

    async def _update_control_plane(self, cluster: Object) -> bool:
        """Whether it is available. It exists already: it is the API server that has the nodes."""
        if resources.spec(cluster).get("controlPlaneRef") not in (None, self._reference(kinds.NSTANCE_CONTROL_PLANE)):
            return True  # somebody else's
        spec = {"controlPlaneEndpoint": self._endpoint()}
        owners = [resources.owner_reference(cluster, kinds.CLUSTER, controller=True)]
        found = await self._get_or_create(kinds.NSTANCE_CONTROL_PLANE, {"ownerReferences": owners}, spec)
        if resources.is_paused(cluster, found):
            await self._show_paused(kinds.NSTANCE_CONTROL_PLANE, found)
            return True
        if not self._nodes.synced.is_set():
            return False
        problem = self._nodes.stale_reason
        was_initialized = bool(resources.status(found).get("initialized"))
        status: Object = {"ready": not problem, "externalManagedControlPlane": True}
        if was_initialized or not problem:
            status |= {"initialized": True, "initialization": {"controlPlaneInitialized": True}}
        conditions = [
            Condition(kind, not problem, "Unreachable" if problem else "Answers", problem)
            for kind in ("Available", "Ready")
        ]
        await self._write_status(kinds.NSTANCE_CONTROL_PLANE, found, status, conditions)
        return not problem

    async def _ensure_nstance_cluster(self, cluster: Object) -> Object:
        spec = {"controlPlaneEndpoint": self._endpoint()}
        owners = [resources.owner_reference(cluster, kinds.CLUSTER, controller=True)]
        found = await self._get_or_create(kinds.NSTANCE_CLUSTER, {"ownerReferences": owners}, spec)
        is_ours = EXTERNALLY_MANAGED not in resources.annotations(found) and not resources.is_paused(cluster, found)
        if resources.is_being_deleted(found) or found.get("spec") == spec or not is_ours:
            return found
        return await self._kube.patch(
            kinds.NSTANCE_CLUSTER, self._settings.name, {"spec": spec}, namespace=self._namespace
        )

    async def _get_or_create(self, kind: kinds.Kind, metadata: Object, spec: Object) -> Object:
        name, namespace = self._settings.name, self._namespace
        metadata = {"name": name, "namespace": namespace, "labels": self._labels, **metadata}
        if (found := await self._get(kind)) is not None:
            return found
        log.info("creating object", extra={"kind": kind.name, "object": name})
        return await create_or_get(self._kube, kind, {"metadata": metadata, "spec": spec}, namespace=namespace)

    async def _get(self, kind: kinds.Kind) -> Object | None:
        return await find(self._kube, kind, self._settings.name, namespace=self._namespace)

    async def _set_initialized(self, cluster: Object) -> None:
        """What Cluster API writes where it runs, because the NstanceControlPlane says so."""
        if self._has_cluster_api_controllers(cluster):
            return
        if resources.condition(cluster, INITIALIZED).get("status") == "True":
            return
        message = "the cluster exists; Nstance does not create its control plane"
        condition = Condition(INITIALIZED, True, "Initialized", message)
        initialization = resources.status(cluster).get("initialization") or {}
        status = {
            "initialization": {**initialization, "controlPlaneInitialized": True},
            "conditions": resources.merge_conditions(cluster, [condition], now=self._clock.wall()),
        }
        # Cluster API writes the same list of conditions: its newer writes must not be overwritten.
        await resources.write_status(self._kube, kinds.CLUSTER, cluster, status, unchanged=True)

    async def _update_status(self, found: Object) -> None:
        names = self._shards.names()
        shards = {name: self._shards.get(name) for name in names}
        unsynced = {
            name: shard.unsynced_reason for name, shard in shards.items() if shard is not None and not shard.synced
        }
        message = "; ".join(f"shard {name}: {reason}" for name, reason in unsynced.items())[:MAX_MESSAGE_LENGTH]
        was_provisioned = bool((resources.status(found).get("initialization") or {}).get("provisioned"))
        is_provisioned = was_provisioned or len(unsynced) < len(names)
        status = {
            "ready": not unsynced,
            "initialization": {"provisioned": True} if is_provisioned else {},
            "failureDomains": [{"name": name, "controlPlane": False} for name in names],
        }
        reason = "ShardsUnreachable" if unsynced else "ShardsReachable"
        ready = Condition("Ready", not unsynced, reason, message or f"all {len(names)} shards answer")
        await self._write_status(kinds.NSTANCE_CLUSTER, found, status, [ready])

    def _endpoint(self) -> Object:
        found = self._settings.endpoint or options.api_server(self._settings.server)
        return {"host": found.host, "port": found.port}

    # ---- the kubeconfig Secret

    async def _reconcile_kubeconfig(self) -> float | None:
        namespace, account = self._namespace, self._settings.service_account
        if await self._read_record() and self._cluster() is None and self._clusters.synced.is_set():
            return None  # the Cluster was deleted; one that is created triggers the next reconcile
        where = f"{namespace}/{self._secret_name}"
        secret = await find(self._kube, kinds.SECRET, self._secret_name, namespace=namespace)
        if secret is not None and not secrets.MANAGED_BY.items() <= resources.labels(secret).items():
            self._warn(f"Secret {where} was not created by the operator and is left alone")
            return None
        now = self._clock.wall()
        due = self._renewal_time(secret)
        if now < due:
            return due - now
        try:
            token = await self._kube.request_token(account, namespace=namespace, seconds=TOKEN_SECONDS)
        except (errors.NotFoundError, errors.ForbiddenError, errors.InvalidError) as problem:
            self._warn(
                f"no token for ServiceAccount {namespace}/{account}: {problem}; see the manifests in config/rbac"
            )
            return RETRY_SECONDS
        self._last_problem = ""
        body = secrets.manifest(
            self._secret_name,
            namespace,
            {workload_cluster.KUBECONFIG_KEY: self._kubeconfig(token.value).encode()},
            kind="cluster.x-k8s.io/secret",
            labels=self._labels,
            annotations={EXPIRES_ANNOTATION: str(int(token.expires)), ACCOUNT_ANNOTATION: account},
        )
        await secrets.write(self._kube, body, seen=secret)
        log.info("kubeconfig token renewed", extra={"secret": where})
        return max(1.0, _due(token.expires) - now)

    def _renewal_time(self, secret: Object | None) -> float:
        """When a new token is due. 0 means now: the Secret is unreadable or names another API server or account."""
        if secret is None:
            return 0.0
        annotations = resources.annotations(secret)
        try:
            expires = float(annotations[EXPIRES_ANNOTATION])
            content = json.loads(base64.b64decode(secret["data"][workload_cluster.KUBECONFIG_KEY]))
            is_same_server = content["clusters"] == json.loads(self._kubeconfig(""))["clusters"]
        except (KeyError, ValueError, TypeError):
            return 0.0
        is_same_account = annotations.get(ACCOUNT_ANNOTATION) == self._settings.service_account
        return _due(expires) if is_same_server and is_same_account else 0.0

    def _kubeconfig(self, token: str) -> str:
        """As JSON, which is YAML too."""
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

    def _warn(self, reason: str, message: str = "failed to keep kubeconfig for Cluster API") -> None:
        """Logs each new reason once."""
        if reason != self._last_problem:
            self._last_problem = reason
            log.warning(message, extra={"reason": reason})


def _due(expires: float) -> float:
    return expires - TOKEN_SECONDS / 3
