"""The kinds that Nstance uses. The plural is part of the URL, so it is written here and never derived."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    group: str  # empty for the core group
    version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path. Without a namespace: all namespaces."""
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


def _core(name: str, plural: str, *, namespaced: bool = True) -> Kind:
    return Kind("", "v1", name, plural, namespaced)


NAMESPACE = _core("Namespace", "namespaces", namespaced=False)
NODE = _core("Node", "nodes", namespaced=False)
POD = _core("Pod", "pods")
SECRET = _core("Secret", "secrets")
CONFIG_MAP = _core("ConfigMap", "configmaps")
SERVICE_ACCOUNT = _core("ServiceAccount", "serviceaccounts")
EVENT = _core("Event", "events")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
CUSTOM_RESOURCE_DEFINITION = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
VALIDATING_WEBHOOK = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)

CAPI = "cluster.x-k8s.io"
CLUSTER = Kind(CAPI, "v1beta2", "Cluster", "clusters")
MACHINE_POOL = Kind(CAPI, "v1beta2", "MachinePool", "machinepools")
MACHINE = Kind(CAPI, "v1beta2", "Machine", "machines")

INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io"
NSTANCE_CLUSTER = Kind(INFRASTRUCTURE, "v1beta1", "NstanceCluster", "nstanceclusters")
NSTANCE_CONTROL_PLANE = Kind(INFRASTRUCTURE, "v1beta1", "NstanceControlPlane", "nstancecontrolplanes")
NSTANCE_MACHINE_POOL = Kind(INFRASTRUCTURE, "v1beta1", "NstanceMachinePool", "nstancemachinepools")
NSTANCE_SHARD_GROUP = Kind(INFRASTRUCTURE, "v1beta1", "NstanceShardGroup", "nstanceshardgroups")
NSTANCE_MACHINE = Kind(INFRASTRUCTURE, "v1beta1", "NstanceMachine", "nstancemachines")
NSTANCE_CLUSTER_TEMPLATE = Kind(INFRASTRUCTURE, "v1beta1", "NstanceClusterTemplate", "nstanceclustertemplates")
NSTANCE_CONTROL_PLANE_TEMPLATE = Kind(
    INFRASTRUCTURE, "v1beta1", "NstanceControlPlaneTemplate", "nstancecontrolplanetemplates"
)
NSTANCE_BOOTSTRAP_CONFIG = Kind(INFRASTRUCTURE, "v1beta1", "NstanceBootstrapConfig", "nstancebootstrapconfigs")
NSTANCE_BOOTSTRAP_CONFIG_TEMPLATE = Kind(
    INFRASTRUCTURE, "v1beta1", "NstanceBootstrapConfigTemplate", "nstancebootstrapconfigtemplates"
)
NSTANCE_MACHINE_POOL_TEMPLATE = Kind(
    INFRASTRUCTURE, "v1beta1", "NstanceMachinePoolTemplate", "nstancemachinepooltemplates"
)
NSTANCE_MACHINE_TEMPLATE = Kind(INFRASTRUCTURE, "v1beta1", "NstanceMachineTemplate", "nstancemachinetemplates")
