"""The controllers that run, in one list."""

from nstance.kube import kinds
from nstance.operator.clusters import Clusters
from nstance.operator.context import Controller, ControllerContext
from nstance.operator.drains import Drains
from nstance.operator.importing import Importing
from nstance.operator.machines import Machines
from nstance.operator.nodes import Nodes
from nstance.operator.pods import Pods
from nstance.operator.pools import Pools
from nstance.operator.shard_groups import ShardGroups


def build(parts: ControllerContext) -> list[Controller]:
    nodes = Nodes(parts.workload, parts.workload_mirrors.of(kinds.NODE))
    return [
        Clusters(parts),
        Importing(parts),
        Pools(parts),
        ShardGroups(parts, nodes),
        Machines(parts, nodes),
        Pods(parts),
        Drains(parts, nodes),
    ]
