"""The nemesis: breaks things at random, most of all around the leader and shortly after something has changed."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from nstance.sim.faults.agents import AgentFaults
from nstance.sim.faults.cloud import CloudFaults
from nstance.sim.faults.servers import ServerFaults
from nstance.sim.faults.themes import FAULTS
from nstance.sim.faults.users import UserFaults
from nstance.sim.setup import Aim

if TYPE_CHECKING:
    from nstance.sim.world import World

AIM_PROBABILITY = 0.5  # that a fault follows a moment which is aimed at
MAX_SHOTS = 6  # of each aim in one run


class Nemesis(ServerFaults, AgentFaults, CloudFaults, UserFaults):
    """Each fault in `themes.FAULTS` is a method of one of its bases."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._shots: Counter[Aim] = Counter()

    async def run(self) -> None:
        world, faults = self.world, self.world.setup.faults
        weights = [FAULTS[name] for name in faults]
        until = world.now + world.setup.seconds
        world.on_moment = self.aim
        while True:
            wait = self.r.expovariate(1 / world.setup.every)
            if world.now + wait >= until:
                break
            await asyncio.sleep(wait)
            if faults:
                self.strike(self.r.choices(faults, weights)[0])
        await asyncio.sleep(max(0.0, until - world.now))

    def aim(self, moment: str) -> None:
        """Something has just changed: a fault that is aimed at such moments follows at once or within seconds."""
        for aim in self.world.setup.aims:
            if aim.moment == moment and self._shots[aim] < MAX_SHOTS and self.r.random() < AIM_PROBABILITY:
                self._shots[aim] += 1
                delay = self.r.uniform(0.0, self.r.choice((0.2, 1.0, 4.0)))
                for fault in aim.faults:
                    self.world.later(delay, self._shoot, moment, fault)
                    delay += self.r.uniform(0.0, 1.5)

    def _shoot(self, moment: str, fault: str) -> None:
        if not self.world.faults_stopped:
            self.world.count(f"aimed {fault} after {moment}")
            self.strike(fault)

    def strike(self, name: str) -> None:
        fault: Callable[[], object] = getattr(self, name)
        self.world.log("fault", name)
        if fault() is not False:
            self.world.count(f"fault {name}")
            self.world.count("faults")
