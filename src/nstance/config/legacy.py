"""Two older spellings, translated before anything else looks: a `server` block, and groups without a tenant.

The documents that Nstance was ordered with print them, so they load with the same meaning. Nothing else knows of them;
`origins` lead a complaint back to the spelling of the file.
"""

from collections.abc import Mapping
from typing import Any

from nstance.config.findings import Findings, Origins
from nstance.config.jsonc import Path
from nstance.config.workload import GroupConfig
from nstance.model.ids import DEFAULT_TENANT

# The printed development block names no cluster; these providers share an account with nobody, so they may go without.
_UNNAMED_CLUSTER = "example-cluster"
_LOCAL = ("tmux", "process", "memory", "mock")

_OF_CLUSTER = ("storage", "secrets")
_GROUP_FIELDS = frozenset(GroupConfig.model_fields)


def translate(value: Mapping[str, object], findings: Findings) -> tuple[dict[str, object], Origins]:
    """The same document in today's spelling, and where each moved part stands in the file. The value stays as it is."""
    today = dict(value)
    origins: dict[Path, Path] = {}
    if "server" in today:
        _translate_server(today, origins, findings)
    if isinstance(groups := today.get("groups"), dict):
        today["groups"] = _with_tenants(groups, origins, findings)
    return today, origins


def _translate_server(today: dict[str, object], origins: dict[Path, Path], findings: Findings) -> None:
    server = today.pop("server")
    if "shard" in today or not isinstance(server, dict):
        findings.add(
            ("server",),
            "expected an object, and no shard block beside it: server is the older spelling of cluster and shard",
        )
        today.setdefault("shard", {})
        return
    shard = {key: each for key, each in server.items() if key not in ("cluster_id", "shard", "provider", *_OF_CLUSTER)}
    cluster = {key: server[key] for key in _OF_CLUSTER if key in server}
    origins.update({("shard",): ("server",), ("shard", "id"): ("server", "shard")})
    if "shard" in server:
        shard["id"] = server["shard"]
    if "provider" in server:
        shard["infra"] = _infra(server["provider"], origins)
    if "cluster_id" in server:
        cluster["id"] = server["cluster_id"]
    elif "cluster" not in today and _is_local(shard.get("infra")):
        cluster["id"] = _UNNAMED_CLUSTER
    today["shard"] = shard
    if "cluster" not in today:
        origins.update({("cluster",): ("server",), ("cluster", "id"): ("server", "cluster_id")})
        today["cluster"] = cluster
    elif cluster:
        findings.add(("cluster",), f"expected no cluster block beside {', '.join(sorted(cluster))} in the server block")


def _infra(provider: object, origins: dict[Path, Path]) -> object:
    origins[("shard", "infra")] = ("server", "provider")
    if not isinstance(provider, dict):
        return provider
    origins[("shard", "infra", "provider")] = ("server", "provider", "kind")
    infra = {key: each for key, each in provider.items() if key != "kind"}
    return {**infra, "provider": provider["kind"]} if "kind" in provider else infra


def _is_local(infra: object) -> bool:
    return isinstance(infra, dict) and infra.get("provider") in _LOCAL


def _with_tenants(groups: dict[str, object], origins: dict[Path, Path], findings: Findings) -> dict[str, object]:
    nested: dict[str, object] = {name: each for name, each in groups.items() if not _is_group(each)}
    flat = {name: each for name, each in groups.items() if _is_group(each)}
    if not flat:
        return nested
    default = nested.get(DEFAULT_TENANT, {})
    if not isinstance(default, dict):
        return nested
    for name in flat:
        if name in default:
            findings.add(
                ("groups", name), f"expected each group once, found {name} also under {DEFAULT_TENANT}", at_key=True
            )
        origins[("groups", DEFAULT_TENANT, name)] = ("groups", name)
    nested[DEFAULT_TENANT] = {**default, **flat}
    return nested


def _is_group(value: object) -> bool:
    """A tenant's groups are objects all; a group has a field that is none."""
    return isinstance(value, dict) and any(
        key in _GROUP_FIELDS and not isinstance(each, dict) for key, each in value.items()
    )


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """Both spellings for editors."""
    properties = dict(schema["properties"])
    properties["server"] = {"type": "object", "description": "older spelling of cluster and shard"}
    (pattern, tenant), *_ = properties["groups"]["patternProperties"].items()
    group = next(iter(tenant["patternProperties"].values()))
    properties["groups"] = {**properties["groups"], "patternProperties": {pattern: {"anyOf": [tenant, group]}}}
    described = {**schema, "properties": properties}
    described["anyOf"] = [{"required": described.pop("required")}, {"required": ["server"]}]
    return described
