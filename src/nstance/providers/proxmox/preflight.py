"""What would fail on Proxmox: the token and its rights, nodes, pools, templates and storages. Nothing is changed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nstance.providers import errors, machine_size
from nstance.providers.port import CloudPlan, Fault, PlannedLaunch
from nstance.providers.proxmox import arguments
from nstance.providers.proxmox.arguments import Arguments
from nstance.providers.proxmox.client import ProxmoxClient
from nstance.providers.proxmox.faults import PERMISSIONS
from nstance.providers.proxmox.inventory import Inventory, PveVm, Storage
from nstance.providers.proxmox.placement import Limits, Node
from nstance.providers.proxmox.places import Places, check_disk, find_templates

VM_RIGHTS = (
    *("VM.Audit", "VM.Clone", "VM.Allocate", "VM.PowerMgmt", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk"),
    *("VM.Config.CDROM", "VM.Config.Network", "VM.Config.Options"),
)
DISK_RIGHTS = ("Datastore.AllocateSpace", "Datastore.Audit")
ISO_RIGHTS = ("Datastore.AllocateTemplate", "Datastore.Allocate", "Datastore.Audit")
_INFRA = ("shard", "infra")

Permissions = Mapping[str, Mapping[str, int]]


class PreflightChecks:
    def __init__(self, client: ProxmoxClient, inventory: Inventory, places: Places, limits: Limits) -> None:
        self._client, self._inventory, self._places, self._limits = client, inventory, places, limits

    async def run(self, plan: CloudPlan, *, pool: str, iso_storage: str) -> Sequence[Fault]:
        try:
            found: Any = await self._client.get("/access/permissions", permission="")
        except errors.ProviderError as problem:
            return [Fault(_INFRA, f"failed to ask Proxmox for the rights of the token: {problem}")]
        permissions: Permissions = found if isinstance(found, dict) else {}
        parsed = [(launch, *_parse(launch)) for launch in plan.launches]
        faults = [fault for _, _, problems in parsed for fault in problems]
        launches = [(launch, args) for launch, args, _ in parsed if args is not None]
        storages = sorted({name for _, args in launches for name in args.storages})
        pools = sorted({name for name in (pool, *(args.pool for _, args in launches)) if name})
        faults += _missing_rights(permissions, storages, pools, iso_storage)
        if any(fault.path == _INFRA for fault in faults):
            return faults  # without rights, what cannot be seen is not absent
        try:
            nodes, vms = await self._inventory.nodes(), await self._inventory.vms()
            on_nodes = {node.name: await self._inventory.storages(node.name) for node in nodes if node.is_usable}
        except errors.ProviderError as problem:
            return [*faults, Fault(_INFRA, f"failed to read the inventory of the cluster: {problem}")]
        faults += self._nodes(nodes)
        for launch, args in launches:
            faults += await self._launch(launch, args, vms, on_nodes)
        return list(dict.fromkeys(faults))

    def _nodes(self, nodes: Sequence[Node]) -> list[Fault]:
        known = {node.name for node in nodes}
        return [
            Fault((*_INFRA, "options", "nodes", number), f"expected a node of the cluster, found {name!r}")
            for number, name in enumerate(self._limits.nodes)
            if name not in known
        ]

    async def _launch(
        self,
        launch: PlannedLaunch,
        args: Arguments,
        vms: Sequence[PveVm],
        on_nodes: Mapping[str, Mapping[str, Storage]],
    ) -> list[Fault]:
        try:
            templates = find_templates(vms, args)
            if any(",disk:" in text for text in launch.instance_types):
                for vm in (templates[node] for node in templates if node in on_nodes):
                    check_disk(await self._inventory.config(vm), args.disk_device)
        except errors.PermanentError as problem:
            return [Fault(_path(launch, problem.parameter), str(problem))]
        except errors.ProviderError as problem:
            return [Fault(_path(launch, ""), str(problem))]
        reasons = {node: self._places.why_not(storages, args) for node, storages in on_nodes.items()}
        if reasons and all(reasons.values()):
            text = "; ".join(f"{node}: {why}" for node, why in reasons.items())
            return [Fault(_path(launch, "StoragePool"), f"expected storages for the VM on a node, found none: {text}")]
        return []


def _parse(launch: PlannedLaunch) -> tuple[Arguments | None, list[Fault]]:
    faults = []
    for text in launch.instance_types:
        try:
            machine_size.parse(text)
        except errors.PermanentError as problem:
            faults.append(Fault(("templates", launch.template, "instance_type"), str(problem)))
    try:
        return arguments.parse(launch.args), faults
    except errors.PermanentError as problem:
        return None, [*faults, Fault(_path(launch, problem.parameter), str(problem))]


def _path(launch: PlannedLaunch, parameter: str) -> tuple[str | int, ...]:
    return ("templates", launch.template, "args", *([parameter] if parameter else []))


def _missing_rights(
    permissions: Permissions, storages: Iterable[str], pools: Sequence[str], iso_storage: str
) -> list[Fault]:
    vms = [(f"/pool/{name}", VM_RIGHTS) for name in pools] or [("/vms", VM_RIGHTS)]
    disks = [(f"/storage/{name}", DISK_RIGHTS) for name in storages]
    needed = [*vms, *disks, (f"/storage/{iso_storage}", ISO_RIGHTS), ("/nodes", ("Sys.Audit",))]
    faults = []
    for path, rights in needed:
        found = {*rights_on(permissions, path), *(rights_on(permissions, "/vms") if path.startswith("/pool/") else ())}
        if missing := [right for right in rights if right not in found]:
            faults.append(
                Fault(_INFRA, f"expected a token with {', '.join(missing)} on {path}, found none: see {PERMISSIONS}")
            )
    return faults


def rights_on(permissions: Permissions, path: str) -> set[str]:
    """Of a path itself, or what the nearest path above it passes on. Those on `/vms` and `/nodes` are needed below them."""
    if path in permissions:
        return {
            right for right, propagates in permissions[path].items() if propagates or path not in ("/vms", "/nodes")
        }
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        if path in permissions:
            return {right for right, propagates in permissions[path].items() if propagates}
    return set()
