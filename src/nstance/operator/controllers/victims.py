"""Which instances leave when a pool shrinks and nobody chose any. Pure.

The shard knows only their age. Here the nodes are known: first those that do not run or are not ready, then empty ones, then
those whose pods mind least, then the oldest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nstance.kube.port import Object
from nstance.operator.controllers import pod_objects, resources
from nstance.v1 import operator_pb2 as pb

COST_ANNOTATION = "nstance.dev/deletion-cost"  # of a Node: added to that of its pods


@dataclass(frozen=True, slots=True)
class NodeLoad:
    pods: int = 0
    cost: int = 0


def node_loads(pods: Iterable[Object]) -> dict[str, NodeLoad]:
    """By node, of pods that `trim_pod` trimmed."""
    loads: dict[str, NodeLoad] = {}
    for pod in pods:
        if node := resources.spec(pod).get("nodeName"):
            load = loads.get(node, NodeLoad())
            loads[node] = NodeLoad(load.pods + 1, load.cost + pod_objects.deletion_cost(pod))
    return loads


def order_victims(
    instances: Mapping[str, pb.InstanceEvent], nodes: Mapping[str, Object | None], loads: Mapping[str, NodeLoad]
) -> list[str]:
    """Instances in the order in which they should leave. `nodes`: the Node of each, if it has one."""

    def rank(id: str) -> tuple[bool, bool, bool, int, str]:
        node = nodes.get(id)
        load = loads.get(resources.name(node), NodeLoad()) if node is not None else NodeLoad()
        cost = load.cost + (_node_cost(node) if node is not None else 0)
        event = instances[id]
        return event.state == "running", event.ready, load.pods > 0, cost, id

    return sorted(instances, key=rank)


def _node_cost(node: Object) -> int:
    try:
        return int(resources.annotations(node).get(COST_ANNOTATION, "0"))
    except ValueError:
        return 0
