"""Translates two older spellings: a `server` block, and groups without a tenant.

They keep loading with the same meaning. All other code sees only the current spelling; `origins` map a problem back to
the path in the file.
"""

from collections.abc import Mapping
from typing import Any

from nstance.config.checks.problems import Origins, ProblemCollector
from nstance.config.jsonc import Path
from nstance.config.model.workload import GroupConfig
from nstance.model.ids import DEFAULT_TENANT

# Local providers share no account with another cluster, so a `server` block may leave the cluster ID out.
_DEFAULT_LOCAL_CLUSTER = "example-cluster"
_LOCAL_PROVIDERS = ("tmux", "process", "memory", "mock")

_CLUSTER_KEYS = ("storage", "secrets")
_GROUP_FIELDS = frozenset(GroupConfig.model_fields)


def translate(value: Mapping[str, object], problems: ProblemCollector) -> tuple[dict[str, object], Origins]:
    """The document in the current spelling, and the path in the file of each moved part. `value` is not changed."""
    document = dict(value)
    origins: dict[Path, Path] = {}
    if "server" in document:
        _translate_server(document, origins, problems)
    if isinstance(groups := document.get("groups"), dict):
        document["groups"] = _with_tenants(groups, origins, problems)
    return document, origins


def _translate_server(document: dict[str, object], origins: dict[Path, Path], problems: ProblemCollector) -> None:
    server = document.pop("server")
    if "shard" in document or not isinstance(server, dict):
        problems.add(
            ("server",),
            "expected an object and no shard block: server is the older spelling of cluster and shard, use one of them",
        )
        document.setdefault("shard", {})
        return
    shard = {
        key: each for key, each in server.items() if key not in ("cluster_id", "shard", "provider", *_CLUSTER_KEYS)
    }
    cluster = {key: server[key] for key in _CLUSTER_KEYS if key in server}
    origins.update({("shard",): ("server",), ("shard", "id"): ("server", "shard")})
    if "shard" in server:
        shard["id"] = server["shard"]
    if "provider" in server:
        shard["infra"] = _infra(server["provider"], origins)
    if "cluster_id" in server:
        cluster["id"] = server["cluster_id"]
    elif "cluster" not in document and _is_local(shard.get("infra")):
        cluster["id"] = _DEFAULT_LOCAL_CLUSTER
    document["shard"] = shard
    if "cluster" not in document:
        origins.update({("cluster",): ("server",), ("cluster", "id"): ("server", "cluster_id")})
        document["cluster"] = cluster
    elif cluster:
        problems.add(
            ("cluster",), f"expected no cluster block: the server block already has {', '.join(sorted(cluster))}"
        )


def _infra(provider: object, origins: dict[Path, Path]) -> object:
    origins[("shard", "infra")] = ("server", "provider")
    if not isinstance(provider, dict):
        return provider
    origins[("shard", "infra", "provider")] = ("server", "provider", "kind")
    infra = {key: each for key, each in provider.items() if key != "kind"}
    return {**infra, "provider": provider["kind"]} if "kind" in provider else infra


def _is_local(infra: object) -> bool:
    return isinstance(infra, dict) and infra.get("provider") in _LOCAL_PROVIDERS


def _with_tenants(
    groups: dict[str, object], origins: dict[Path, Path], problems: ProblemCollector
) -> dict[str, object]:
    flat = {name: each for name, each in groups.items() if _is_group(each)}
    nested: dict[str, object] = {name: each for name, each in groups.items() if name not in flat}
    default = nested.get(DEFAULT_TENANT, {})
    if not flat or not isinstance(default, dict):
        return nested
    for name in flat:
        if name in default:
            problems.add(
                ("groups", name), f"expected each group once, found {name} also under {DEFAULT_TENANT}", at_key=True
            )
        origins[("groups", DEFAULT_TENANT, name)] = ("groups", name)
    nested[DEFAULT_TENANT] = {**default, **flat}
    return nested


def _is_group(value: object) -> bool:
    """A tenant holds only objects; a group has at least one field that is not an object."""
    return isinstance(value, dict) and any(
        key in _GROUP_FIELDS and not isinstance(each, dict) for key, each in value.items()
    )


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema with both spellings, for editors."""
    properties = dict(schema["properties"])
    properties["server"] = {"type": "object", "description": "older spelling of cluster and shard"}
    (pattern, tenant), *_ = properties["groups"]["patternProperties"].items()
    group = next(iter(tenant["patternProperties"].values()))
    properties["groups"] = {**properties["groups"], "patternProperties": {pattern: {"anyOf": [tenant, group]}}}
    either = [{"required": schema["required"]}, {"required": ["server"]}]
    return {
        **{key: each for key, each in schema.items() if key != "required"},
        "properties": properties,
        "anyOf": either,
    }
