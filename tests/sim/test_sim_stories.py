"""A shard that Hypothesis drives: any order of faults, changes and waiting. A failure is shrunk to a short schedule.

NSTANCE_STORIES sets the number of examples.
"""

import os
from contextlib import ExitStack

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nstance.points import Point
from nstance.sim.desired_groups import DesiredGroup, DesiredGroups
from nstance.sim.faults.nemesis import Nemesis
from nstance.sim.faults.themes import FAULTS
from nstance.sim.setup import Setup
from nstance.sim.world import World, world

STORIES = int(os.environ.get("NSTANCE_STORIES", "20"))
SETUP = Setup(
    faults=tuple(FAULTS),
    storage=0.005,
    provider=0.01,
    snapshots=True,
    desired_groups=DesiredGroups(groups={"web": DesiredGroup(size=3)}),
)
SETTLE_SECONDS = 900.0
USER_FAULTS = ("scale", "change_template", "break_config", "pester", "resign")


class ShardMachine(RuleBasedStateMachine):
    w: World

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.w = self.stack.enter_context(world(11, SETUP))
        self.nemesis = Nemesis(self.w)
        self.w.begin()
        self.w.advance(5.0)

    @rule(seconds=st.sampled_from((0.05, 0.5, 2.0, 8.0, 20.0)))
    def time_passes(self, seconds: float) -> None:
        self.w.advance(seconds)

    @rule(fault=st.sampled_from([name for name in FAULTS if name not in USER_FAULTS]))
    def something_breaks(self, fault: str) -> None:
        self.w.do(self.nemesis.strike, fault)

    @rule(fault=st.sampled_from(USER_FAULTS))
    def a_user_acts(self, fault: str) -> None:
        self.w.do(self.nemesis.strike, fault)

    @rule(point=st.sampled_from(Point), fate=st.sampled_from(("crash", "pause")))
    def a_server_fails_at_the_next_visit(self, point: Point, fate: str) -> None:
        self.w.crashes.append((point, self.w.visits[point] + 1, fate))

    @precondition(lambda self: any(s.machine.alive for s in self.w.servers))
    @rule()
    def all_servers_die(self) -> None:
        for server in self.w.servers:
            self.w.do(self.w.kill, server)

    @invariant()
    def no_invariant_is_violated(self) -> None:
        assert not self.w.violations, self.w.violations[0]

    def teardown(self) -> None:
        try:
            self.w.crashes.clear()
            self.w.do(self.w.stop_faults)
            self.w.settle(SETTLE_SECONDS)
            assert not self.w.violations, self.w.violations[0]
        finally:
            self.stack.close()


ShardMachine.TestCase.settings = settings(
    max_examples=STORIES,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestShardMachine = ShardMachine.TestCase
