"""On which node a VM is created: the one with the most free memory after everything that is promised there.

Memory counts by what VMs may use, not by what they use now: a VM that was just started has touched little of it. VMs
that are being created and do not show yet count too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nstance.providers import errors
from nstance.providers.machine_size import MachineSize

MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    is_usable: bool  # online and not in maintenance
    memory_mib: int
    cpus: int


@dataclass(frozen=True, slots=True)
class Promise:
    """Memory and cores of a VM on a node."""

    node: str
    memory_mib: int
    cpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    nodes: Sequence[str] = ()  # empty: all
    memory_overcommit: float = 1.0
    reserve_memory_mib: int = 1024  # for the node itself


def free_memory(node: Node, promises: Iterable[Promise], limits: Limits) -> int:
    used = sum(each.memory_mib for each in promises if each.node == node.name)
    return round(node.memory_mib * limits.memory_overcommit) - limits.reserve_memory_mib - used


def choose_node(
    nodes: Sequence[Node], allowed: Mapping[str, str], promises: Sequence[Promise], size: MachineSize, limits: Limits
) -> str:
    """`allowed`: nodes that have the template and the storages; for the others why not. Raises NoCapacityError."""
    fitting: list[tuple[float, int, str]] = []
    reasons: list[str] = []
    for node in nodes:
        if limits.nodes and node.name not in limits.nodes:
            continue
        free = free_memory(node, promises, limits)
        if not node.is_usable:
            reasons.append(f"{node.name} is offline or in maintenance")
        elif why_not := allowed.get(node.name, "it has no such template"):
            reasons.append(f"{node.name}: {why_not}")
        elif free < size.memory_mib:
            reasons.append(f"{node.name} has {max(0, free)} MiB of memory left")
        else:
            cores = sum(each.cpus for each in promises if each.node == node.name)
            fitting.append((cores / max(1, node.cpus), -free, node.name))
    if not fitting:
        raise errors.NoCapacityError(
            f"expected a node with {size.memory_mib} MiB of free memory, found none: {'; '.join(reasons) or 'no node'}",
            scope=errors.CapacityScope.HOST,
            subject="nodes",
        )
    # Most free memory; among equals the fewest promised cores.
    return min(fitting, key=lambda each: (each[1], each[0], each[2]))[2]
