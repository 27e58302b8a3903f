"""What a server does while it leads: from the fence to the last flush.

The order matters. The fence comes first, then the rest of the journal, then configuration, then open ports; only after
the provider was listed is anything deleted. Whatever ends it, every connection is aborted: a server that no longer leads
answers nothing on old connections.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from nstance.clock import Clock, Rng
from nstance.config import blocks
from nstance.model.consistency import violations
from nstance.model.decision import ReasonCode
from nstance.model.ids import ClusterId, IdMaker, ShardId
from nstance.model.instance import ENDED, Remove, State
from nstance.objects import errors, journal, slots
from nstance.objects.lease import Lease
from nstance.objects.port import ObjectStore
from nstance.providers.port import Provider
from nstance.secretstore.port import SecretStore
from nstance.server.cache.cache import Cache
from nstance.server.cloud.effects import EffectContext, Effects
from nstance.server.cloud.images import Images
from nstance.server.cloud.inventory import InventoryReconciler
from nstance.server.cloud.leader_address import LeaderAddress
from nstance.server.cloud.load_balancers import BalancerContext, LoadBalancers
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.server.cloud.subnets import Subnets
from nstance.server.config import configuration as configurations
from nstance.server.config.active_config import ActiveConfig
from nstance.server.election.term import Term
from nstance.server.identity.issuer import Issuer
from nstance.server.leader.context import Advertised, TermContext
from nstance.server.leader.history import History
from nstance.server.leader.revision_store import RevisionStore
from nstance.server.leader.step_times import StepTimes
from nstance.server.liveness.connected_agents import ConnectedAgents
from nstance.server.liveness.readiness import Readiness
from nstance.server.state.follower import Follower
from nstance.server.state.shard import Committed, Shard
from nstance.server.workload.file_sets import FileSets
from nstance.server.workload.userdata import Userdata
from nstance.telemetry.metrics import GroupCount, Metrics

log = logging.getLogger(__name__)

FINISH_SECONDS = 0.3
SNAPSHOT_CHECK_SECONDS = 1.0


class Port(Protocol):
    """A way in for agents or operators, open only while this server leads."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Abort every connection: nothing is answered any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderParts:
    """What a server is made of, whether it leads or not."""

    name: ShardId
    cluster: ClusterId
    store: ObjectStore
    active_config: ActiveConfig
    books: journal.Journal
    follower: Follower
    provider: Provider
    issuer: Issuer
    secret_store: SecretStore
    advertised: Advertised
    ports: Callable[[TermContext], Sequence[Port]]
    held: Callable[[], Lease | None]
    wrote: Callable[[int], None]  # the journal is so long now
    watch: Callable[[Term, float], AbstractContextManager[object]]  # notices when the event loop stands still
    history: History
    metrics: Metrics
    clock: Clock
    rng: Rng
    cache: Cache | None = None  # for what was learnt from the provider


class Leader:
    def __init__(self, parts: LeaderParts) -> None:
        self.parts = parts
        self.lead: TermContext | None = None
        self._ids = IdMaker(wall=parts.clock.wall, bits=parts.rng.bits)

    async def run(self, term: Term) -> None:
        """One term. Returns after `term.closing`; raises Deposed, slots.Damaged, or storage errors before anything was
        done."""
        parts = self.parts
        book, _ = await asyncio.gather(parts.follower.take(), parts.active_config.begin())
        await self._read_all(book)
        writer = journal.Writer(
            parts.books, book, epoch=term.epoch, guard=term.ready, rng=parts.rng, appended=self._appended
        )
        await writer.fence(read=parts.history.keep)
        for problem in violations(book.instances):
            log.error("a record is inconsistent", extra={"problem": problem})
        lead, effects, collector, network = self._assemble(term, writer, book)
        ports = parts.ports(lead)
        tasks: list[asyncio.Task[None]] = []
        promise = configurations.timings(parts.active_config.configuration.settings).promise
        try:
            parts.active_config.reloaded = lead.reloaded
            parts.active_config.told = lead.configure  # before the first port is open, where groups may be changed
            with parts.watch(term, promise):
                for port in ports:
                    await port.open()
                self.lead = lead
                parts.metrics.leads(term.epoch)
                parts.metrics.count_groups(lambda: _counts(lead, parts.clock.monotonic()))
                parts.metrics.count_held(
                    unknown_vms=lambda: len(lead.shard.unknown), groups=lambda: len(lead.shard.held_groups())
                )
                lead.announce_held()
                if term.odd:
                    lead.shard.notes.announce(ReasonCode.CLOCK, term.odd)
                log.info("leading", extra={"epoch": term.epoch, "instances": len(lead.shard.instances)})
                work: list[Coroutine[Any, Any, None]] = [
                    writer.run(),
                    lead.shard.run(),
                    collector.run(),
                    self._snapshots(writer),
                    parts.active_config.watch(term),
                    network.run(),
                    lead.subnets.run(),
                    lead.images.run(),
                    lead.userdata.run(),
                    lead.balancers.run(),
                    lead.revisions.run(),
                ]
                tasks = [asyncio.create_task(each) for each in (*work, _until(term.closing))]
                await _first(tasks)
                tasks[1].cancel()  # no new decisions
                lead.shard.notes.write()
                await asyncio.gather(effects.finish(FINISH_SECONDS), network.release(FINISH_SECONDS))
                async with asyncio.timeout(parts.books.timeout()):
                    await writer.settled()
        finally:
            self.lead = parts.active_config.told = parts.active_config.reloaded = None
            parts.metrics.stands_by()
            parts.metrics.count_groups(tuple)
            parts.metrics.count_held()
            for task in tasks:
                task.cancel()
            await _to_the_end(
                asyncio.gather(*(port.close() for port in ports), effects.close(), *tasks, return_exceptions=True)
            )

    def _appended(self, slot: slots.Slot) -> None:
        self.parts.wrote(slot.number)
        self.parts.history.keep(slot)

    async def _read_all(self, book: journal.JournalState) -> None:
        """Before the fence, which would take the place of a slot that is missing."""
        held = self.parts.held()
        if held is None or book.tail >= held.tail:
            return
        await self.parts.books.follow(book, read=self.parts.history.keep)
        if book.tail < held.tail:
            raise slots.DamagedError(
                f"the journal ends at slot {book.tail}, but the lease has seen slot {held.tail}: restore what is missing"
            )

    def _assemble(
        self, term: Term, writer: journal.Writer, book: journal.JournalState
    ) -> tuple[TermContext, Effects, InventoryReconciler, LeaderAddress]:
        parts, configuration = self.parts, self.parts.active_config.configuration

        def told() -> blocks.Shard:
            return lead.configuration.settings.shard

        calls = ProviderCalls(
            ready=term.ready,
            clock=parts.clock,
            rng=parts.rng,
            metrics=parts.metrics,
            settings=told,
            record_event=lambda code, message: lead.shard.notes.announce(code, message),
        )
        lead = TermContext(
            name=parts.name,
            configuration=configuration,
            issuer=parts.issuer,
            file_sets=FileSets(
                store=parts.store,
                secret_store=parts.secret_store,
                authority=lambda: parts.issuer.authority,
                shard=parts.name,
                clock=parts.clock,
                rng=parts.rng,
                cache_ttl=configuration.settings.cluster.secrets.cache_ttl,
                count=parts.metrics.certificate_issued,
            ),
            metrics=parts.metrics,
            advertised=parts.advertised,
            images=Images(
                parts.provider,
                clock=parts.clock,
                calls=calls,
                interval=lambda: told().image_refresh_interval,
                on_change=lambda: lead.supplied(),
                cache=parts.cache,
            ),
            subnets=Subnets(parts.provider, calls=calls, clock=parts.clock),
            userdata=Userdata(
                clock=parts.clock,
                on_change=lambda: lead.supplied(),
                cache=parts.cache,
            ),
            capabilities=parts.provider.capabilities,
            cache=parts.cache,
        )
        effects = Effects(
            EffectContext(
                provider=parts.provider,
                calls=calls,
                clock=parts.clock,
                metrics=parts.metrics,
                settings=told,
                make_request=lead.request,
                is_wanted=lambda id: lead.shard.wants(id),
                post=lambda event: lead.shard.post(event),
                wait_deregistered=lambda instance: lead.balancers.wait_deregistered(instance),
                on_console_output=lead.said,
            )
        )
        lead.on_configured.append(effects.on_configured)
        lead.agents = ConnectedAgents(lambda event: lead.shard.post(event), parts.metrics.agents_connected, parts.clock)
        lead.shard = Shard(
            term=term,
            writer=writer,
            instances=book.instances,
            group_records=book.groups,
            drainers=book.drainers,
            clock=parts.clock,
            ids=self._ids,
            policy=configuration.policy,
            desired_groups=lead.desired_groups(),
            prepare=lead.prepare,
            act=effects.start,
            last_seen=lead.agents.last_seen,
        )
        lead.shard.blocked, lead.shard.crowded = lead.blocked(), lead.subnets.crowded
        lead.shard.groups_lost = configuration.dynamic_version is None
        lead.balancers = LoadBalancers(
            BalancerContext(
                shard=lead.shard,
                provider=parts.provider,
                clock=parts.clock,
                calls=calls,
                cache=parts.cache,
            )
        )
        lead.balancers.configure(lead.balancer_names())
        lead.readiness = Readiness(lead)
        lead.on_configured.append(lead.readiness.configured)
        lead.revisions = RevisionStore(
            lead.shard,
            name=parts.name,
            store=parts.store,
            clock=parts.clock,
            groups=lambda: lead.configuration.groups,
        )
        lead.step_times = StepTimes(parts.clock)
        lead.on_configured += [
            lead.revisions.configured,
            lambda: lead.step_times.forget(set(lead.configuration.groups)),
        ]
        lead.shard.observers += [
            parts.history.observe,
            lead.step_times.observe,
            lambda committed: _follow(lead, committed),
            lead.balancers.observe,
        ]
        parts.history.restore(lead.shard.instances)
        collector = InventoryReconciler(
            lead.shard,
            parts.provider,
            cluster=parts.cluster,
            name=parts.name,
            clock=parts.clock,
            calls=calls,
            agent_addresses=lead.agents.addresses,
        )
        network = LeaderAddress(
            parts.provider,
            calls=calls,
            clock=parts.clock,
            is_configured=lambda: told().leader_network is not None,
        )
        return lead, effects, collector, network

    async def _snapshots(self, writer: journal.Writer) -> None:
        while True:
            await self.parts.clock.sleep(SNAPSHOT_CHECK_SECONDS)
            if not writer.snapshot_due():
                continue
            try:
                await writer.snapshot()
            except (errors.StorageError, TimeoutError) as problem:
                log.warning("a snapshot could not be written, it is tried again", extra={"error": str(problem)})
                await self.parts.clock.sleep(30.0)


async def _to_the_end(work: asyncio.Future[Any]) -> None:
    """Wait for it whoever cancels meanwhile: the end of a term may be noticed by several, and a second cancellation must
    not leave ports open on which agents would go on talking to a server that no longer leads."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _until(event: asyncio.Event) -> None:
    await event.wait()


async def _first(tasks: list[asyncio.Task[None]]) -> None:
    """Until one of the tasks ends; raises what it raised."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()


def _counts(lead: TermContext, now: float) -> Iterator[GroupCount]:
    shard, clones, readiness = lead.shard, lead.agents.clones, lead.readiness
    for key in sorted(shard.keys()):
        desired = shard.desired_groups.get(key)
        members = shard.members(key)
        yield GroupCount(
            key=key,
            size=desired.size if desired is not None else 0,
            states=Counter(member.state for member in members.values()),
            paused=desired is not None and desired.paused,
            cloned=sum(clones.is_seen(id, now) for id in members),
            ready=sum(readiness.is_ready(member) for member in members.values()),
            blocked=bool(lead.told_blocked(key) or readiness.blocked(key)),
        )


def _follow(lead: TermContext, committed: Committed) -> None:
    """What connected agents notice of a decision: files for new addresses, and the end of those that are gone."""
    for change in committed.changes:
        if isinstance(change, Remove):
            lead.agents.drop(change.id)
            continue
        instance, before = change.instance, committed.before.get(change.instance.id)
        if instance.state is State.DELETING or instance.state in ENDED:
            lead.agents.drop(instance.id)
        elif before is not None and (before.ip4, before.ip6, before.hostname) != (
            instance.ip4,
            instance.ip6,
            instance.hostname,
        ):
            lead.agents.nudge([instance.id])
