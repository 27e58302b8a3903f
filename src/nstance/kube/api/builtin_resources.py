"""The resources that are served without a CRD: those that the operator, its manifests and kubectl use.

They include the kinds of Cluster API and ours, so that development needs no CRDs. They accept any JSON until their CRDs
are applied.
"""

from dataclasses import replace

from nstance.kube import crds, kinds
from nstance.kube.api import crd_objects
from nstance.kube.api.resources import Column, Resource, ScalePaths, builtin
from nstance.kube.kinds import Kind

_RBAC = "rbac.authorization.k8s.io"
_REPLICAS = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))
_POOL_REPLICAS = ScalePaths(("spec", "replicas"), ("status", "replicas"), ("status", "selector"))


def _column(name: str, path: str, type: str = "string", priority: int = 0) -> Column:
    return Column(name, type, path, priority=priority)


_AGE = _column("Age", ".metadata.creationTimestamp", "date")
_READY = _column("Ready", '.status.conditions[?(@.type=="Ready")].status')
_PHASE = _column("Phase", ".status.phase")
_CLUSTER = _column("Cluster", ".spec.clusterName")


def _core() -> tuple[Resource, ...]:
    def core(name: str, plural: str, **options: object) -> Resource:
        return builtin(Kind("", "v1", name, plural), **options)  # type: ignore[arg-type]

    involved = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    event_fields = (*(f"involvedObject.{each}" for each in involved), "reason", "reportingComponent", "source", "type")
    pod_specs = ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork")
    pod_fields = (*(f"spec.{each}" for each in pod_specs), "status.phase", "status.podIP", "status.nominatedNodeName")
    return (
        builtin(kinds.NAMESPACE, short="ns", status=True, fields=("status.phase",)),
        builtin(kinds.NODE, short="no", status=True, fields=("spec.unschedulable",), keeps_status=True),
        builtin(kinds.POD, short="po", categories="all", status=True, fields=pod_fields),
        builtin(kinds.SECRET, fields=("type",)),
        builtin(kinds.CONFIG_MAP, short="cm"),
        builtin(kinds.SERVICE_ACCOUNT, short="sa"),
        builtin(kinds.EVENT, short="ev", fields=event_fields),
        core("Service", "services", short="svc", categories="all", status=True),
        core("Endpoints", "endpoints", short="ep"),
        core("PersistentVolumeClaim", "persistentvolumeclaims", short="pvc", status=True),
        core("ReplicationController", "replicationcontrollers", short="rc", status=True, scale=_REPLICAS),
        core("LimitRange", "limitranges", short="limits"),
        core("ResourceQuota", "resourcequotas", short="quota", status=True),
    )


def _groups() -> tuple[Resource, ...]:
    def apps(name: str, short: str, scale: ScalePaths | None = _REPLICAS) -> Resource:
        kind = Kind("apps", "v1", name, f"{name.lower()}s")
        return builtin(kind, short=short, categories="all", status=True, scale=scale, generation=True)

    def rbac(name: str, *, namespaced: bool = True) -> Resource:
        return builtin(Kind(_RBAC, "v1", name, f"{name.lower()}s", namespaced))

    mutating = Kind(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        namespaced=False,
    )
    policies = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
    classes = Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
    jobs = Kind("batch", "v1", "Job", "jobs")
    return (
        apps("Deployment", "deploy"),
        apps("ReplicaSet", "rs"),
        apps("StatefulSet", "sts"),
        apps("DaemonSet", "ds", None),
        builtin(jobs, categories="all", status=True, generation=True),
        builtin(kinds.LEASE),
        builtin(kinds.POD_DISRUPTION_BUDGET, short="pdb", status=True, generation=True),
        builtin(
            kinds.CUSTOM_RESOURCE_DEFINITION,
            short="crd crds",
            categories="api-extensions",
            status=True,
            generation=True,
        ),
        builtin(kinds.VALIDATING_WEBHOOK, categories="api-extensions", generation=True),
        builtin(mutating, categories="api-extensions", generation=True),
        builtin(policies, short="netpol", generation=True),
        builtin(classes, short="pc"),
        rbac("Role"),
        rbac("RoleBinding"),
        rbac("ClusterRole", namespaced=False),
        rbac("ClusterRoleBinding", namespaced=False),
    )


def _cluster_api() -> tuple[Resource, ...]:
    def capi(kind: Kind, short: str, *columns: Column, scale: ScalePaths | None = None) -> Resource:
        shown = (*columns, _PHASE, _AGE)
        return builtin(
            kind, short=short, categories="cluster-api", status=True, custom=True, scale=scale, columns=shown
        )

    return (
        capi(
            kinds.CLUSTER,
            "cl",
            _column("Available", '.status.conditions[?(@.type=="Available")].status'),
            _column("Endpoint", ".spec.controlPlaneEndpoint.host"),
        ),
        capi(
            kinds.MACHINE_POOL,
            "mp",
            _CLUSTER,
            _column("Desired", ".spec.replicas", "integer"),
            _column("Replicas", ".status.replicas", "integer"),
            _column("Ready", ".status.readyReplicas", "integer"),
            scale=_POOL_REPLICAS,
        ),
        capi(
            kinds.MACHINE,
            "ma",
            _CLUSTER,
            _column("Node", ".status.nodeRef.name"),
            _column("ProviderID", ".spec.providerID", priority=1),
            _READY,
        ),
    )


def _nstance() -> tuple[Resource, ...]:
    """Our kinds, from their CRDs but without the schema: they accept any JSON until the CRDs are applied."""
    found = (crd_objects.resource(crds.definition(kind)) for kind in crds.KINDS)
    return tuple(
        replace(each, versions=tuple(replace(version, schema=None) for version in each.versions))
        for each in found
        if each is not None
    )


RESOURCES: tuple[Resource, ...] = (*_core(), *_groups(), *_cluster_api(), *_nstance())
