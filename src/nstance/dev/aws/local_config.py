"""A configuration for AWS, adapted to the stand-in on this machine.

What belongs to an account is replaced: subnets, security groups, image owners, ports, the URLs of userdata, of the
agent and of Netsy. All else stays as it is in the file.
"""

import json
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nstance.config import addresses, jsonc

AGENT_PATH = "/agent.tar.gz"
NETSY_PATH = "/netsy"  # a stand-in for the program of the Netsy guide


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCloud:
    """What the stand-in has."""

    region: str
    subnets: Sequence[str]
    security_group: str
    files_url: str  # where the agent and userdata are served
    first_port: int


def adapt(text: str, cloud: LocalCloud, *, source: str) -> bytes:
    """The configuration for this machine. Raises ConfigError."""
    document: Any = jsonc.read(text, source=source).value
    block = document["shard"] if "shard" in document else document["server"]  # the older spelling
    infra = block["infra"] if "infra" in block else block["provider"]
    infra.update(
        {"provider" if "infra" in block else "kind": "aws", "region": cloud.region, "zone": f"{cloud.region}a"}
    )
    infra.pop("options", None)
    block.pop("leader_network", None)  # this machine has one address
    block.pop("advertise", None)
    pools = block.setdefault("subnet_pools", {}) or {"main": []}
    for number, name in enumerate(pools):  # a subnet is in one pool only
        mine = cloud.subnets[number :: len(pools)]
        pools[name] = list(mine[: max(1, len(pools[name]))])
    block["subnet_pools"] = pools
    block["bind"] = {
        service.key: f"127.0.0.1:{cloud.first_port + number}" for number, service in enumerate(addresses.Service)
    }
    block["userdata_hosts"] = ["127.0.0.1"]
    document["agent"] = {"url": cloud.files_url + AGENT_PATH}
    for image in document.get("images", {}).values():
        image.pop("owners", None)
    for name in _undefined_images(document):
        document.setdefault("images", {})[name] = {"filters": [{"name": "name", "values": ["debian-13-*"]}]}
    document.setdefault("defaults", {}).setdefault("vars", {})["NetsyURL"] = cloud.files_url + NETSY_PATH
    for layer in [document.get("defaults", {}), *document.get("templates", {}).values()]:
        _adapt_layer(layer, cloud)
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def _adapt_layer(layer: Any, cloud: LocalCloud) -> None:
    userdata = layer.get("userdata")
    if userdata and userdata.get("source") == "url":
        path = urllib.parse.urlsplit(userdata["content"]).path
        userdata["content"] = cloud.files_url + path
    args = layer.get("args", {})
    if "SecurityGroupIds" in args:
        args["SecurityGroupIds"] = [cloud.security_group]


def _undefined_images(document: Any) -> set[str]:
    """Images that arguments name and that the file does not define: a fragment from a guide leaves them out."""
    layers = [document.get("defaults", {}), *document.get("templates", {}).values()]
    used = {str(layer.get("args", {}).get("ImageId", "")).partition(".Image.")[2].rstrip(" }") for layer in layers}
    return {name for name in used if name} - set(document.get("images", {}))


def instance_profiles(text: str, *, source: str) -> list[str]:
    """The names of the instance profiles that the templates use."""
    document: Any = jsonc.read(text, source=source).value
    layers = [document.get("defaults", {}), *document.get("templates", {}).values()]
    profiles = [layer.get("args", {}).get("IamInstanceProfile", {}) for layer in layers]
    names = [each.get("Name") or str(each.get("Arn", "")).rpartition("/")[2] for each in profiles]
    return sorted({name for name in names if name})
