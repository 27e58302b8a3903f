"""The controllers that run, in one list."""

from nstance.kube import kinds
from nstance.operator.controllers.clusters import Clusters
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.drains import Drains
from nstance.operator.controllers.importing import Importer
from nstance.operator.controllers.machines import Machines
from nstance.operator.controllers.nodes import Nodes
from nstance.operator.controllers.pods import Pods
from nstance.operator.controllers.pools import Pools
from nstance.operator.controllers.shard_groups import ShardGroups


def build_controllers(parts: ControllerContext) -> list[Controller]:
    nodes = Nodes(parts.workload, parts.workload_mirrors.of(kinds.NODE))
    return [
        Clusters(parts),
        Importer(parts),
        Pools(parts),
        ShardGroups(parts, nodes),
        Machines(parts, nodes),
        Pods(parts),
        Drains(parts, nodes),
    ]
