"""The operators' side of a simulated server: writes groups and steers rollouts."""

import asyncio
from typing import TYPE_CHECKING

from grpclib.exceptions import GRPCError

from nstance.model.ids import GroupKey, OperatorId
from nstance.server.api.group_writer import GroupWriter
from nstance.server.api.rollout_requests import RolloutRequests, end_rollback
from nstance.server.leader.context import TermContext

if TYPE_CHECKING:
    from nstance.sim.server import SimServer

OPERATOR = OperatorId("somebody")


class OperatorPort:
    """A `server.leader.environment.Port`: open while its server leads."""

    def __init__(self, server: "SimServer", lead: TermContext) -> None:
        self._server = server
        env = server.env
        self.groups = GroupWriter(lead.shard, lead.active_config, store=env.store, clock=env.clock, rng=env.rng)
        self.rollouts = RolloutRequests(lead.shard, lead.active_config, lead.revisions, self.groups, env.clock)
        lead.shard.commits.subscribe(self.rollouts.observe)
        lead.active_config.subscribe(self.rollouts.on_config_change)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self._tasks = [asyncio.create_task(work) for work in (self.groups.run(), self.rollouts.run())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def roll_back(self, key: GroupKey) -> None:
        try:
            await self.groups.change(await self.rollouts.roll_back(key, "", by=OPERATOR), who=OPERATOR)
            self._server.world.count("rolled back")
        except GRPCError as refusal:
            self._server.world.count(f"rollback refused {refusal.status.name.lower()}")

    async def resume(self, key: GroupKey) -> None:
        try:
            if self.rollouts.is_rolled_back(key):
                await self.groups.change(end_rollback(key), who=OPERATOR)
                self._server.world.count("rollback ended")
            else:
                await self.rollouts.resume(key, by="")
                self._server.world.count("rollout resumed")
        except GRPCError as refusal:
            self._server.world.count(f"resuming refused {refusal.status.name.lower()}")
