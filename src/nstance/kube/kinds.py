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


INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io"


def _own(name: str, plural: str) -> Kind:
    return Kind(INFRASTRUCTURE, "v1beta1", name, plural)


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

NSTANCE_CLUSTER = _own("NstanceCluster", "nstanceclusters")
NSTANCE_CONTROL_PLANE = _own("NstanceControlPlane", "nstancecontrolplanes")
NSTANCE_MACHINE_POOL = _own("NstanceMachinePool", "nstancemachinepools")
NSTANCE_SHARD_GROUP = _own("NstanceShardGroup", "nstanceshardgroups")
NSTANCE_MACHINE = _own("NstanceMachine", "nstancemachines")
NSTANCE_CLUSTER_TEMPLATE = _own("NstanceClusterTemplate", "nstanceclustertemplates")
NSTANCE_CONTROL_PLANE_TEMPLATE = _own("NstanceControlPlaneTemplate", "nstancecontrolplanetemplates")
NSTANCE_BOOTSTRAP_CONFIG = _own("NstanceBootstrapConfig", "nstancebootstrapconfigs")
NSTANCE_BOOTSTRAP_CONFIG_TEMPLATE = _own("NstanceBootstrapConfigTemplate", "nstancebootstrapconfigtemplates")
NSTANCE_MACHINE_POOL_TEMPLATE = _own("NstanceMachinePoolTemplate", "nstancemachinepooltemplates")
NSTANCE_MACHINE_TEMPLATE = _own("NstanceMachineTemplate", "nstancemachinetemplates")
