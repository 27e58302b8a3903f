"""One server of a shard: standby or leader. The composition root that the product and the simulator share."""

from collections.abc import Coroutine
from typing import Any

from nstance.config import storage_keys
from nstance.core import election as rules
from nstance.objects import journal, lease
from nstance.objects.port import write_gap
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import ActiveConfig
from nstance.server.config.configuration import Configuration
from nstance.server.election.context import ElectionContext
from nstance.server.election.elector import Elector
from nstance.server.election.store_latency import TimedStore
from nstance.server.leader.environment import Environment
from nstance.server.leader.history import History
from nstance.server.leader.leader import Leader
from nstance.server.state.follower import Follower
from nstance.tasks.background import running

STANDBY_SECONDS = 5.0  # since its last answer, in which a standby counts


class Server:
    def __init__(self, env: Environment, me: lease.Holder, configuration: Configuration) -> None:
        self.env = env
        store = TimedStore(env.store, env.clock)
        books = journal.Journal(
            store,
            journal_prefix=storage_keys.journal_prefix(env.shard),
            snapshot_prefix=storage_keys.snapshot_prefix(env.shard),
            clock=env.clock,
            timeout=lambda: max(journal.TIMEOUT_SECONDS, store.latency().timeout),
            limits=env.journal_limits,
        )
        history = History(env.history, env.metrics, env.clock)
        self.active_config = ActiveConfig(configuration, store=env.store, shard=env.shard, clock=env.clock)
        self.follower = Follower(books, env.clock, on_slot=history.keep)
        self.elector = Elector(
            ElectionContext(
                store=store,
                key=storage_keys.lease(env.shard),
                me=me,
                timings=rules.spaced(configurations.timings(configuration.settings), write_gap(store)),
                clock=env.clock,
                rng=env.rng,
                latency=store.latency,
                anchor=env.clock.anchor,
                waits=env.waits,
            ),
            dialer=env.dialer,
            tail=lambda: self.follower.tail,
            floor=self.follower.floor,
            on_tail=self.follower.hint,
        )
        self.leader = Leader(
            env,
            active_config=self.active_config,
            journal=books,
            follower=self.follower,
            elector=self.elector,
            history=history,
        )
        env.metrics.count_config(
            refused=lambda: bool(self.active_config.rejection), unreadable=lambda: not self.active_config.is_readable
        )
        env.metrics.count_standbys(lambda: sum(age <= STANDBY_SECONDS for age in self.elector.standbys().values()))

    @property
    def damage(self) -> str:
        """What is damaged in storage, if nobody can lead because of it."""
        journal = self.elector.damage or self.follower.damage
        damage = self.elector.lease_damage or (journal and f"the journal is damaged: {journal}")
        return "" if self.leader.context is not None or self.elector.sees_leader else damage

    @property
    def waits_for(self) -> str:
        """Why nobody leads, if storage does not answer. A restart would not help: it needs storage too."""
        problem = self.elector.storage_problem
        return "" if self.leader.context is not None or self.elector.sees_leader else problem

    def stop(self) -> None:
        """Begin an orderly stop: `run` returns when the lease is free."""
        self.elector.stop()

    async def run(self, *background: Coroutine[Any, Any, None]) -> None:
        """Lead or stand by until stopped. `background` ends only by a bug: then the lease is released, and `run` raises."""
        async with running((self.follower.run(leading=lambda: self.elector.has_term), *background)) as tasks:
            for task in tasks:
                task.add_done_callback(lambda _: self.elector.stop())
            await self.elector.run(self.leader.run)
            for task in tasks:
                if task.done():
                    task.result()
