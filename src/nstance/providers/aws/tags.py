"""Tags of EC2 resources: which shard owns them, and what people want to see."""

from collections.abc import Mapping, Sequence
from typing import Any

from nstance.providers.port import CreateRequest, Scope

ID, MANAGED, CLUSTER, SHARD = "nstance:instance-id", "nstance:managed", "nstance:cluster-id", "nstance:shard"
TENANT, GROUP = "nstance:tenant", "nstance:group"
_TAGGED = ("instance", "volume", "network-interface")


def specifications(scope: Scope, request: CreateRequest) -> Sequence[object]:
    """`TagSpecifications`: the users' tags with ours over them. Only the name may be a user's."""
    name = {"Name": f"{request.group}-{request.id}"}
    ours = {
        ID: request.id,
        MANAGED: "true",
        CLUSTER: scope.cluster,
        SHARD: scope.shard,
        TENANT: request.tenant,
        GROUP: request.group,
        "nstance:kind": request.kind,
        "nstance:template": request.template,
        "nstance:created": str(int(request.created)),
    }
    given = {spec["ResourceType"]: spec["Tags"] for spec in _given(request.args)}
    out = []
    kinds = _TAGGED if _creates_interfaces(request.args) else _TAGGED[:-1]
    for kind in dict.fromkeys((*kinds, *given)):
        if kind == "spot-instances-request" and request.market == "on-demand":
            continue  # there is none: a fallback from spot must not fail for its tags
        users = {tag["Key"]: tag.get("Value", "") for tag in given.get(kind, ()) if "Key" in tag}
        tags = {**name, **users, **ours}
        out.append({"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]})
    return out


def _creates_interfaces(args: Mapping[str, object]) -> bool:
    """EC2 refuses tags for interfaces where the launch only uses some that exist."""
    interfaces: Any = args.get("NetworkInterfaces") or ({},)
    return not all(isinstance(each, Mapping) and each.get("NetworkInterfaceId") for each in interfaces)


def _given(args: Mapping[str, object]) -> list[Mapping[str, Any]]:
    given: Any = args.get("TagSpecifications") or ()
    return [spec for spec in given if isinstance(spec, Mapping) and spec.get("ResourceType") and spec.get("Tags")]


def owned(scope: Scope) -> Mapping[str, str]:
    return {MANAGED: "true", CLUSTER: scope.cluster, SHARD: scope.shard}


def filters(tags: Mapping[str, str]) -> list[object]:
    """Of describe calls."""
    return [{"Name": f"tag:{key}", "Value": [value]} for key, value in tags.items()]
