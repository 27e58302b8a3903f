"""What each provider accepts as options, arguments and leader network.

A table instead of an import, because reading a configuration must not load a cloud SDK.
"""

import gzip
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from nstance.config.checks.problems import ProblemCollector
from nstance.config.errors import quoted
from nstance.config.jsonc import Path
from nstance.config.model.scalars import describe_type

AGENT_BASE_BYTES = 3800  # what the base "agent" adds at least, with a CA certificate and a nonce
_ACTION = re.compile(r"{{.*?}}", re.DOTALL)
_BLOCK = re.compile(r"{{-?\s*(if|range|with|define|block)\b")
_GOOGLE_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_MACHINE_TYPE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PASCAL = re.compile(r"[A-Z][A-Za-z0-9]*")
_SIZE = re.compile(r"cpu:[1-9][0-9]{0,3},memory:[1-9][0-9]{0,7}(,disk:[1-9][0-9]{0,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    options: Collection[str]
    max_userdata_bytes: int = 0  # 0: not known
    local: bool = False  # runs agents on this machine: no images, userdata or subnets, and args are not checked
    needs_subnets: bool = True  # otherwise a group may have no subnet pool
    args: Collection[str] = ()  # all argument names, if the provider has a fixed list
    reserved: frozenset[str] = frozenset()  # arguments that Nstance sets itself
    leader_network: Collection[str] | None = ()  # required keys; None: not supported
    instead: str = ""  # what to use instead of a leader network


RULES: Mapping[str, Rules] = {
    "process": Rules(options=("dir", "command", "env"), local=True, leader_network=None),
    "tmux": Rules(
        options=("dir", "command", "env", "session", "socket", "dev_k8s_dir"), local=True, leader_network=None
    ),
    "memory": Rules(options=("call_seconds", "boot_seconds", "delete_seconds", "subnets", "offers"), local=True),
    "qemu": Rules(
        options=("dir", "images", "binary", "accel", "bridge", "memory_mib", "shutdown_seconds"),
        needs_subnets=False,
        args=("Image", "Kernel", "Initrd", "Append", "State"),
        leader_network=None,
    ),
    "aws": Rules(
        options=(
            "endpoint",
            "endpoint_url",
            "profile",
            "role_arn",
            "launch_burst",
            "launch_rate",
        ),
        max_userdata_bytes=16 * 1024,
        reserved=frozenset({"MinCount", "MaxCount", "ClientToken", "InstanceType", "SubnetId", "UserData", "DryRun"}),
    ),
    "gcp": Rules(
        options=("project_id", "endpoint", "endpoint_url"),
        max_userdata_bytes=192 * 1024,
        reserved=frozenset({"Name", "MachineType", "Zone", "RequestId", "Subnetwork", "UserData"}),
        leader_network=("ip",),
    ),
    "proxmox": Rules(
        options=(
            *("api_url", "nodes", "verify_tls", "ca_file", "fingerprint", "iso_storage", "vmids", "bridge", "pool"),
            *("memory_overcommit", "reserve_memory_mib", "token_id", "token_secret_name"),
        ),
        needs_subnets=False,
        reserved=frozenset({"Name", "VMID", "Tags", "Description", "UserData"}),
        leader_network=None,
        instead="Proxmox cannot move an address between VMs: let keepalived do it, see docs/proxmox.md#leader-address",
    ),
}


def needs_subnets(provider: str) -> bool:
    return RULES[provider].needs_subnets and not RULES[provider].local


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(each, str) for each in value)


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_count_map(value: object) -> bool:
    return isinstance(value, dict) and all(type(each) is int and each >= 0 for each in value.values())


def _is_offer_map(value: object) -> bool:
    return _is_count_map(value) and isinstance(value, dict) and all(name.count("/") >= 2 for name in value)


def _matches(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_vmids(value: object) -> bool:
    first, _, last = value.partition("-") if isinstance(value, str) else ("", "", "")
    return bool(re.fullmatch(r"\d{3,9}", first) and re.fullmatch(r"\d{3,9}", last)) and int(last) - int(first) >= 99


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _is_positive(value: object) -> bool:
    return _is_seconds(value) and value != 0


_OPTION_TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(
        (
            *(
                "dir",
                "dev_k8s_dir",
                "session",
                "socket",
                "profile",
                "role_arn",
            ),
            *("images", "binary", "bridge", "ca_file", "iso_storage", "pool"),
            *("token_id", "token_secret_name"),
        ),
        ("text in quotes", _is_text),
    ),
    **dict.fromkeys(
        ("call_seconds", "boot_seconds", "delete_seconds", "shutdown_seconds"), ("a number of seconds", _is_seconds)
    ),
    **dict.fromkeys(
        ("endpoint", "endpoint_url"), ("a URL such as https://host:port", _matches(r"https?://[^/\s@]+(/\S*)?"))
    ),
    "api_url": ("a URL such as https://HOST:8006", _matches(r"https?://[^/\s@]+(/api2/json)?/?")),
    "project_id": ("the ID of a project", _matches(r"([a-z0-9.-]+:)?[a-z0-9][a-z0-9-]{2,61}[a-z0-9]")),
    "fingerprint": ("the SHA-256 of a certificate in hexadecimal", _matches(r"[0-9a-fA-F]{2}(:?[0-9a-fA-F]{2}){31}")),
    "vmids": ('a range of at least 100 such as "100000-199999"', _is_vmids),
    "accel": ("one of auto, kvm, tcg", lambda value: value in ("auto", "kvm", "tcg")),
    "nodes": ("a list of node names", _is_texts),
    "verify_tls": ("true or false", lambda value: isinstance(value, bool)),
    "memory_overcommit": ("a number above 0", lambda value: _is_seconds(value) and value != 0),
    "reserve_memory_mib": ("a whole number of MiB", lambda value: type(value) is int and value >= 0),
    "memory_mib": ("a whole number of MiB", lambda value: type(value) is int and value >= 0),
    **dict.fromkeys(("launch_burst", "launch_rate"), ("a number above 0", _is_positive)),
    "command": ("a list of a program and its arguments", _is_texts),
    "env": ("an object of texts", _is_text_map),
    "subnets": ("an object of counts", _is_count_map),
    "offers": ('an object of counts by "market/instance type/subnet", with * for any', _is_offer_map),
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
        instead = RULES[provider].instead or f"the provider {provider} does not support one; remove it"
        problems.add(path, f"expected no leader_network: {instead}")
        return
    for name in needed:
        if not network.get(name):
            problems.add((*path, name), f"expected this key: the provider {provider} needs it for its leader network")
    if provider == "gcp" and network.get("interface_id"):
        problems.add(
            (*path, "interface_id"), "expected no interface_id: an alias IP of Google moves by itself; remove it"
        )
    if provider == "gcp" and network.get("ip6"):
        problems.add((*path, "ip6"), "expected no ip6: an alias IP of Google is an IPv4 address; remove it")
    if not network.get("ip") and not network.get("ip6"):
        problems.add(path, "expected an ip or an ip6, found neither")


def check_zone(provider: str, infra: Mapping[str, object], path: Path, problems: ProblemCollector) -> None:
    if provider != "gcp":
        return
    zone, region = infra.get("zone"), infra.get("region")
    if not (isinstance(zone, str) and _GOOGLE_ZONE.fullmatch(zone)):
        found = quoted(zone) if isinstance(zone, str) else "none"
        problems.add(path, f"expected a zone of Google such as europe-west1-b, found {found}")
    elif region and zone.rpartition("-")[0] != region:
        problems.add(path, f"expected a zone of the region {region}, found {quoted(zone)}")


def check_args(provider: str, args: Mapping[str, object], path: Path, problems: ProblemCollector) -> None:
    """Checks the argument names of one layer."""
    rules = RULES[provider]
    if rules.local:
        return
    for name in args:
        if name in rules.reserved:
            problems.add((*path, name), "expected no such argument: Nstance sets it itself; remove it", at_key=True)
        elif rules.args and name not in rules.args:
            message = f"expected an argument of the provider {provider}"
            problems.add((*path, name), message, word=name, candidates=rules.args, at_key=True)
        elif not _PASCAL.fullmatch(name):
            message = f"expected an argument of the provider {provider} (spelled LikeThis), found {quoted(name)}"
            problems.add((*path, name), message, at_key=True)
        elif provider == "qemu" and not isinstance(args[name], str):
            problems.add((*path, name), f"expected text in quotes, found {describe_type(args[name])}")
        elif provider in ("aws", "gcp", "proxmox"):
            _check_cloud_argument(provider, name, args[name], path, problems)


def _check_cloud_argument(provider: str, name: str, value: object, path: Path, problems: ProblemCollector) -> None:
    # A table of hundreds of names each, only for those who need it.
    if provider == "aws":
        from nstance.aws.arguments import find_faults
    elif provider == "gcp":
        from nstance.gcp.arguments import find_faults
    else:
        from nstance.proxmox.arguments import find_faults

    for fault in find_faults({name: value}):
        word = str(fault.path[-1]) if fault.known else ""
        problems.add((*path, *fault.path), fault.message, word=word, candidates=fault.known, at_key=bool(fault.known))


def check_userdata(provider: str, userdata: Mapping[str, object], path: Path, problems: ProblemCollector) -> None:
    """Userdata that cannot fit, whatever its fields become. What is fetched or depends on conditions is checked later."""
    most, content = RULES[provider].max_userdata_bytes, userdata.get("content")
    is_inline = userdata.get("source", "inline") == "inline"
    if not most or not is_inline or not isinstance(content, str) or _BLOCK.search(content):
        return
    body = _ACTION.sub("", content).encode(errors="replace")
    encoding = userdata.get("encoding", "plain")
    size = len(body) + (AGENT_BASE_BYTES if userdata.get("base") == "agent" else 0)
    if isinstance(encoding, str) and "gzip" in encoding:
        size = len(gzip.compress(body))
    if size > most:
        hint = "let it fetch its larger parts" if "gzip" in str(encoding) else 'set its encoding to "gzip"'
        problems.add(
            (*path, "content"), f"expected at most {most} bytes for the provider {provider}, found {size}; {hint}"
        )


def check_merged(
    provider: str,
    args: Mapping[str, object],
    instance_types: Mapping[Path, str],
    path: Path,
    problems: ProblemCollector,
) -> None:
    """Checks what must be there once all layers are merged. `instance_types`: with the path of each."""
    for place, instance_type in instance_types.items() if provider in ("qemu", "proxmox") else ():
        if not _SIZE.fullmatch(instance_type):
            message = f'expected an instance type such as "cpu:4,memory:8192,disk:50", found {quoted(instance_type)}'
            problems.add((*path, *place), message)
    if provider == "qemu" and args.get("State") and (others := sorted(set(args) - {"State"})):
        message = f"expected no {others[0]} beside State: a saved state has its own disk and kernel; remove one"
        problems.add((*path, "args", others[0]), message)
    for place, instance_type in instance_types.items() if provider == "gcp" else ():
        if not _MACHINE_TYPE.fullmatch(instance_type):
            message = f"expected a machine type of Google such as e2-small, found {quoted(instance_type)}"
            problems.add((*path, *place), message)
    if provider == "gcp" and not instance_types and not args.get("SourceMachineImage"):
        problems.add((*path, "instance_type"), "expected this key, or instance_types: Google has no default")
    if provider == "gcp" and not (args.get("SourceImage") or args.get("Disks")):
        problems.add((*path, "args", "SourceImage"), "expected this argument, or Disks: a VM needs a boot disk")
    if provider != "proxmox":
        return
    if not args.get("StoragePool"):
        problems.add((*path, "args", "StoragePool"), "expected this argument: proxmox needs it for a VM's disks")
    if bool(args.get("TemplateName")) == bool(args.get("TemplateVMID")):
        problems.add((*path, "args"), "expected exactly one of TemplateName and TemplateVMID")


def list_types(one: object, several: object) -> dict[Path, str]:
    """The instance types of a template or group, with their paths in it."""
    if isinstance(one, str) and one:
        return {("instance_type",): one}
    named = enumerate(several) if isinstance(several, list | tuple) else ()
    return {("instance_types", index): name for index, name in named if isinstance(name, str)}


def check_markets(provider: str, path: Path, problems: ProblemCollector) -> None:
    if provider in ("qemu", "proxmox"):
        problems.add(path, f"expected no markets: the provider {provider} has none; remove them", at_key=True)
