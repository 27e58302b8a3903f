"""What faults strike: servers (mostly the leader), agents and VMs, drawn at random."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from nstance.model.ids import InstanceId
from nstance.providers.port import Status
from nstance.sim.agent import SimAgent
from nstance.sim.server import SimServer

if TYPE_CHECKING:
    from nstance.sim.world import World

LEADER_SHARE = 0.7  # of the faults that strike a server


class FaultGroup:
    """Base of the classes whose methods are faults. A fault that could not strike returns False."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.r = world.random

    def pick_server(self) -> SimServer:
        leader = self.world.leader()
        if leader is not None and self.r.random() < LEADER_SHARE:
            return leader
        return self.r.choice(self.world.servers)

    def pick_agent(self) -> SimAgent | None:
        """A connected one."""
        agents = [a for a in self.world.agents() if a.connection is not None and a.unreachable_since is None]
        return self.r.choice(agents) if agents else None

    def strike_agent(self, act: Callable[[SimAgent], object]) -> bool:
        agent = self.pick_agent()
        if agent is not None:
            act(agent)
        return agent is not None

    def pick_vm(self) -> InstanceId | None:
        """One of ours that runs."""
        protected = self.world.auditor.protected
        vms = [v for v in self.world.cloud.vms() if v.status in (Status.RUNNING, Status.PENDING)]
        ids = [v.id for v in vms if v.id not in protected]
        return self.r.choice(ids) if ids else None

    def strike_vm(self, act: Callable[[InstanceId], object]) -> bool:
        id = self.pick_vm()
        if id is not None:
            act(id)
        return id is not None

    def pick_group(self) -> str:
        return self.r.choice(list(self.world.desired_groups.groups))
