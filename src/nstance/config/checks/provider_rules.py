"""What each provider accepts as options, arguments and leader network.

A table instead of an import, because reading a configuration must not load a cloud SDK.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from nstance.config.checks.problems import ProblemCollector
from nstance.config.errors import quoted
from nstance.config.jsonc import Path
from nstance.config.model.scalars import describe_type

_PASCAL = re.compile(r"[A-Z][A-Za-z0-9]*")
_PROXMOX_TYPE = re.compile(r"cpu:[1-9][0-9]{0,3},memory:[1-9][0-9]{0,7}(,disk:[1-9][0-9]{0,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    options: Collection[str]
    local: bool = False  # runs agents on this machine: no images, userdata or subnets, and args are not checked
    reserved: frozenset[str] = frozenset()  # arguments that Nstance sets itself
    leader_network: Collection[str] | None = ()  # required keys; None: not supported


RULES: Mapping[str, Rules] = {
    "process": Rules(options=("dir", "command", "env"), local=True, leader_network=None),
    "tmux": Rules(
        options=("dir", "command", "env", "session", "socket", "dev_k8s_dir"), local=True, leader_network=None
    ),
    "memory": Rules(options=("call_seconds", "boot_seconds", "delete_seconds", "subnets"), local=True),
    "aws": Rules(
        options=("endpoint_url", "profile", "role_arn"),
        reserved=frozenset({"MinCount", "MaxCount", "ClientToken", "InstanceType", "SubnetId", "UserData", "DryRun"}),
        leader_network=("interface_id",),
    ),
    "gcp": Rules(
        options=("project_id", "endpoint_url", "network"),
        reserved=frozenset({"Name", "MachineType", "Zone", "RequestId", "Subnetwork", "UserData"}),
        leader_network=("ip",),
    ),
    "proxmox": Rules(
        options=("api_url", "nodes", "verify_tls", "bridge"),
        reserved=frozenset({"Name", "VMID", "Tags", "Description", "UserData"}),
        leader_network=("ip", "interface_id"),
    ),
}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(each, str) for each in value)


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_count_map(value: object) -> bool:
    return isinstance(value, dict) and all(type(each) is int and each >= 0 for each in value.values())


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


_OPTION_TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(
        ("dir", "dev_k8s_dir", "session", "socket", "endpoint_url", "api_url"), ("text in quotes", _is_text)
    ),
    **dict.fromkeys(("call_seconds", "boot_seconds", "delete_seconds"), ("a number of seconds", _is_seconds)),
    "command": ("a list of a program and its arguments", _is_texts),
    "env": ("an object of texts", _is_text_map),
    "subnets": ("an object of counts", _is_count_map),
}


def check_options(provider: str, options: Mapping[str, object], path: Path, problems: ProblemCollector) -> None:
    known = RULES[provider].options
    for name, value in options.items():
        if name not in known:
            message = f"expected an option of the provider {provider}"
            problems.add((*path, name), message, word=name, candidates=known, at_key=True)
        elif name in _OPTION_TYPES and not _OPTION_TYPES[name][1](value):
            problems.add((*path, name), f"expected {_OPTION_TYPES[name][0]}, found {describe_type(value)}")


def check_leader_network(provider: str, network: Mapping[str, object], path: Path, problems: ProblemCollector) -> None:
    needed = RULES[provider].leader_network
    if needed is None:
        problems.add(path, f"expected no leader_network: the provider {provider} does not support one; remove it")
        return
    for name in needed:
        if not network.get(name):
            problems.add((*path, name), f"expected this key: the provider {provider} needs it for its leader network")
    if not network.get("ip") and not network.get("ip6"):
        problems.add(path, "expected an ip or an ip6, found neither")


def check_args(provider: str, args: Mapping[str, object], path: Path, problems: ProblemCollector) -> None:
    """Checks the argument names of one layer."""
    rules = RULES[provider]
    if rules.local:
        return
    for name in args:
        if name in rules.reserved:
            problems.add((*path, name), "expected no such argument: Nstance sets it itself; remove it", at_key=True)
        elif not _PASCAL.fullmatch(name):
            message = f"expected an argument of the provider {provider} (spelled LikeThis), found {quoted(name)}"
            problems.add((*path, name), message, at_key=True)


def check_merged(
    provider: str, args: Mapping[str, object], instance_type: str, path: Path, problems: ProblemCollector
) -> None:
    """Checks what must be there once all layers are merged."""
    if provider != "proxmox":
        return
    if not args.get("StoragePool"):
        problems.add((*path, "args", "StoragePool"), "expected this argument: proxmox needs it for a VM's disks")
    if bool(args.get("TemplateName")) == bool(args.get("TemplateVMID")):
        problems.add((*path, "args"), "expected exactly one of TemplateName and TemplateVMID")
    if instance_type and not _PROXMOX_TYPE.fullmatch(instance_type):
        message = f'expected an instance type such as "cpu:4,memory:8192,disk:50", found {quoted(instance_type)}'
        problems.add((*path, "instance_type"), message)
