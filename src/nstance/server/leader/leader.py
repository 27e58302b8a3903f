"""What a server does during one term: from the fence to the last flush.

The order matters: journal and configuration are read, then comes the fence, with what an older leader wrote until then,
then the ports are opened; nothing is deleted before the provider was listed. Whatever ends the term, every connection is
aborted: a server that no longer leads answers nothing on old connections.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from nstance.model.consistency import violations
from nstance.model.decision import ReasonCode
from nstance.model.ids import IdMaker
from nstance.objects import errors, journal_writer, slots
from nstance.objects.journal import Journal, JournalState
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import ActiveConfig
from nstance.server.election.elector import Elector
from nstance.server.election.term import Term
from nstance.server.leader.assembly import TermWork, assemble, desired_groups
from nstance.server.leader.context import TermContext
from nstance.server.leader.environment import Environment, Port
from nstance.server.leader.group_counts import count_groups
from nstance.server.leader.history import History
from nstance.server.state.commits import Commits
from nstance.server.state.follower import Follower
from nstance.server.state.shard_parts import ShardParts
from nstance.server.state.shard_state import ShardState
from nstance.tasks import background

log = logging.getLogger(__name__)

FINISH_SECONDS = 0.3
SNAPSHOT_CHECK_SECONDS = 1.0
SNAPSHOT_RETRY_SECONDS = 30.0


@dataclass(eq=False)
class Leader:
    env: Environment
    _: KW_ONLY
    active_config: ActiveConfig
    journal: Journal
    follower: Follower
    elector: Elector
    history: History
    context: TermContext | None = None  # while this server leads
    _commits: Commits | None = None  # of the current term

    def __post_init__(self) -> None:
        self.ids = IdMaker(wall=self.env.clock.wall, bits=self.env.rng.bits)

    async def run(self, term: Term) -> None:
        """One term. Returns after `term.closing`. Raises DeposedError, DamagedError and storage errors."""
        with self.env.observers.term(term):
            state, _ = await asyncio.gather(self.follower.take(), self.active_config.begin_term())
            await self._read_all(state)
            writer = journal_writer.Writer(
                self.journal,
                state,
                epoch=term.epoch,
                guard=term.ready,
                rng=self.env.rng,
                on_append=self._on_append,
            )
            await writer.fence(on_slot=self.history.keep)
            for problem in violations(state.instances):
                log.error("inconsistent record in the journal", extra={"problem": problem})
            parts = self._make_parts(term, writer, state)
            try:
                context, work = assemble(self.env, self.active_config, parts, drainers=state.drainers)
                await self._lead(context, work, writer, self.env.ports(context))
            finally:
                self._commits = None
                self.active_config.end_term()

    def _make_parts(self, term: Term, writer: journal_writer.Writer, state: JournalState) -> ShardParts:
        shard_state = ShardState(state.instances, state.groups, desired_groups(self.active_config.configuration))
        on_commit = self.env.observers.on_commit
        parts = ShardParts.make(term, writer, shard_state, clock=self.env.clock, ids=self.ids, on_commit=on_commit)
        parts.commits.subscribe(self.history.observe)
        if self.env.traces is not None:
            parts.commits.subscribe(self.env.traces.observe)
        self._commits = parts.commits
        self.history.restore(shard_state.instances)
        return parts

    async def _lead(
        self, context: TermContext, work: TermWork, writer: journal_writer.Writer, ports: Sequence[Port]
    ) -> None:
        env, term = self.env, context.shard.term
        tasks: list[asyncio.Task[Any]] = []
        promise = configurations.timings(context.configuration.settings).promise
        try:
            with env.watchdog(term, promise):
                for port in ports:
                    await port.open()
                self.context = context
                self._count(context)
                work.held_groups.record()
                if term.clock_warning:
                    context.shard.event_log.record_for_all(ReasonCode.CLOCK, term.clock_warning)
                log.info(
                    "leader ready, its ports are open",
                    extra={"epoch": term.epoch, "records": len(context.shard.instances)},
                )
                writing, deciding = asyncio.create_task(writer.run()), asyncio.create_task(context.shard.run())
                others = (
                    work.inventory.run(),
                    self._write_snapshots(writer),
                    self.active_config.watch(term),
                    *work.background(context),
                    term.closing.wait(),
                )
                tasks = [writing, deciding, *(asyncio.create_task(each) for each in others)]
                await background.first_end(tasks)
                deciding.cancel()
                context.shard.event_log.write()
                await asyncio.gather(work.effects.finish(FINISH_SECONDS), work.leader_address.release(FINISH_SECONDS))
                async with asyncio.timeout(self.journal.timeout()):
                    await writer.wait_durable()
        finally:
            self.context = None
            env.metrics.stands_by()
            env.metrics.count_groups(tuple)
            env.metrics.count_held()
            env.metrics.count_exhausted_offers()
            for task in tasks:
                task.cancel()
            await _finish(
                asyncio.gather(*(port.close() for port in ports), work.effects.close(), *tasks, return_exceptions=True)
            )

    def _count(self, context: TermContext) -> None:
        metrics, shard = self.env.metrics, context.shard
        metrics.leads(shard.term.epoch)
        metrics.count_groups(lambda: count_groups(context, self.env.clock.monotonic()))
        metrics.count_exhausted_offers(shard.offers.count)
        metrics.count_held(unknown_vms=lambda: len(shard.unknown), groups=lambda: len(shard.held_groups()))

    def _on_append(self, slot: slots.Slot) -> None:
        self.elector.set_tail(slot.number)
        self.history.keep(slot)
        if self._commits is not None:
            self._commits.on_append(slot)

    async def _read_all(self, state: JournalState) -> None:
        """Before the fence, which would take the place of a slot that is missing."""
        held = self.elector.held
        if held is None or state.tail >= held.tail:
            return
        await self.journal.follow(state, on_slot=self.history.keep)
        if state.tail < held.tail:
            raise slots.DamagedError(
                f"the journal ends at slot {state.tail}, but the lease has seen slot {held.tail}: restore what is missing"
            )

    async def _write_snapshots(self, writer: journal_writer.Writer) -> None:
        while True:
            await self.env.clock.sleep(SNAPSHOT_CHECK_SECONDS)
            if not writer.is_snapshot_due():
                continue
            try:
                await writer.snapshot()
            except (errors.StorageError, TimeoutError) as problem:
                log.warning("failed to write a snapshot", extra={"error": str(problem)})
                await self.env.clock.sleep(SNAPSHOT_RETRY_SECONDS)


async def _finish(work: asyncio.Future[Any]) -> None:
    """Wait for the work although this task is cancelled: several may notice the end of a term, and a second cancellation
    must not leave ports open on which agents would go on talking to a server that no longer leads."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
