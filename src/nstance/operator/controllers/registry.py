"""The list of controllers that run."""

from nstance.kube import kinds
from nstance.operator.controllers.clusters import Clusters
from nstance.operator.controllers.context import Controller, ControllerContext
from nstance.operator.controllers.drains import Drains
from nstance.operator.controllers.gone_nodes import GoneNodes
from nstance.operator.controllers.importing import Importer
from nstance.operator.controllers.machines import Machines
from nstance.operator.controllers.nodes import Nodes
from nstance.operator.controllers.pods import Pods
from nstance.operator.controllers.pool_machines import PoolMachines
from nstance.operator.controllers.pools import Pools
from nstance.operator.controllers.shard_groups import ShardGroups


def build_controllers(context: ControllerContext) -> list[Controller]:
    nodes = Nodes(context.workload, context.workload_mirrors.of(kinds.NODE))
    return [
        Clusters(context),
        Importer(context),
        Pools(context, nodes),
        ShardGroups(context, nodes),
        Machines(context, nodes),
        PoolMachines(context, nodes),
        Pods(context),
        Drains(context, nodes),
        GoneNodes(context, nodes),
    ]
