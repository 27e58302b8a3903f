"""Labels of Google's resources: which shard owns them, and what people want to see."""

from collections.abc import Mapping

from nstance.providers.port import CreateRequest, Scope

ID, MANAGED, CLUSTER, SHARD = "nstance-instance-id", "nstance-managed", "nstance-cluster-id", "nstance-shard"
TENANT, GROUP = "nstance-tenant", "nstance-group"


def of_request(scope: Scope, request: CreateRequest) -> dict[str, str]:
    """Ours; users' own are merged below them. Names of Nstance are valid as values."""
    return {
        ID: request.id,
        **owned(scope),
        TENANT: request.tenant,
        GROUP: request.group,
        "nstance-kind": request.kind,
        "nstance-template": request.template.lower().replace(".", "_")[:63],
        "nstance-created": str(int(request.created)),
    }


def owned(scope: Scope) -> dict[str, str]:
    return {MANAGED: "true", CLUSTER: scope.cluster, SHARD: scope.shard}


def filter_of(labels: Mapping[str, str]) -> str:
    """Of list calls. Google wants each of several expressions in parentheses."""
    return " ".join(f'(labels.{name} = "{value}")' for name, value in labels.items())
