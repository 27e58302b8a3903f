"""Two real electors over real links, through relays that can be frozen."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from component.peer_world import dialer, fingerprint, server_side
from component.wire_world import CHANCE, CLOCK, CLUSTER, SHARD, Pipe, World, on_both_loops
from nstance.core import election as rules
from nstance.objects import errors
from nstance.objects import lease as leases
from nstance.objects.memory import Fate, MemoryStore
from nstance.objects.port import Key
from nstance.server.election import peer_http
from nstance.server.election.context import ElectionContext
from nstance.server.election.elector import Elector
from nstance.server.election.term import Term
from support.eventually import eventually


class Shard:
    """Servers with real electors over one store, and a relay in front of each that can be frozen."""

    def __init__(self) -> None:
        self.world = World()
        self.store = MemoryStore(CLOCK)
        self.servers: list[Member] = []

    async def add(self, stack: contextlib.AsyncExitStack, id: str) -> "Member":
        member = Member(self, id)
        await stack.enter_async_context(member.running(stack))
        self.servers.append(member)
        return member

    def lease(self) -> leases.Lease:
        return leases.decode(self.store.contents()["leader.json"])


class Member:
    def __init__(self, shard: Shard, id: str) -> None:
        self.shard = shard
        self.id = id
        self.paper = shard.world.server(id=id)
        self.storage_cut = False
        self.terms: list[Term] = []
        self.acting: Term | None = None
        self.others_leading: list[str] = []  # who else could still act when this one began to lead
        self.elector: Elector
        self.task: asyncio.Task[None]

    @property
    def leads(self) -> bool:
        return self.elector.held is not None and bool(self.terms) and not self.terms[-1].ended.is_set()

    async def _fate(self, verb: object, key: str) -> Fate:
        return Fate(before=5.0, error=errors.UnavailableError("cut off")) if self.storage_cut else Fate()

    async def _lead(self, term: Term) -> None:
        self.terms.append(term)
        self.acting = term
        others = [s for s in self.shard.servers if s is not self]
        self.others_leading += [s.id for s in others if s.acting is not None and s.acting.leading()]
        try:
            await term.closing.wait()
        finally:
            self.acting = None

    @asynccontextmanager
    async def running(self, stack: contextlib.AsyncExitStack) -> AsyncIterator[None]:
        world, context = self.shard.world, server_side(self.shard.world, self.paper)
        server = peer_http.PeerServer(
            accept=lambda link: self.elector.accept(link),
            held=lambda: self.elector.held,
            context=lambda: context,
            cluster=CLUSTER,
            shard=SHARD,
        )
        await server.listener.start("127.0.0.1", 0)
        self.server = server
        self.pipe = await stack.enter_async_context(Pipe(server.listener.port))
        self.elector = Elector(
            ElectionContext(
                store=self.shard.store.view(self._fate),
                key=Key("leader.json"),
                me=leases.Holder(
                    server=self.id,
                    incarnation=f"{self.id}.1",
                    addresses=(f"127.0.0.1:{self.pipe.port}",),
                    fingerprint=fingerprint(self.paper),
                ),
                timings=rules.Timings(),
                clock=CLOCK,
                rng=CHANCE,
            ),
            dialer=dialer(world, self.paper),
            tail=lambda: 0,
            floor=self._floor,
        )
        self.task = asyncio.create_task(self.elector.run(self._lead))
        try:
            yield
        finally:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            await server.listener.close()

    async def _floor(self) -> int:
        return 0


@asynccontextmanager
async def leader_and_member() -> AsyncIterator[tuple[Shard, Member, Member]]:
    async with contextlib.AsyncExitStack() as stack:
        shard = Shard()
        leader = await shard.add(stack, "server-1")
        await eventually(lambda: leader.leads, "a first leader")
        standby = await shard.add(stack, "server-2")
        await eventually(lambda: [m.server for m in shard.lease().members] == ["server-2"], "the standby in the lease")
        yield shard, leader, standby


async def leadership(member: Member) -> int:
    context = member.shard.world.client_context()
    context.set_alpn_protocols(["http/1.1"])
    url = f"https://127.0.0.1:{member.server.listener.port}{peer_http.LEADERSHIP}"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
        return response.status


@on_both_loops
async def test_a_standby_joins_and_leads_as_soon_as_the_lease_is_given_back() -> None:
    async with leader_and_member() as (shard, leader, standby):
        assert [await leadership(leader), await leadership(standby)] == [200, 404]
        member = shard.lease().members[0]
        assert member.fingerprint == fingerprint(standby.paper)
        leader.elector.stop()
        await eventually(lambda: standby.leads, "the standby's term")
        assert shard.lease().epoch == 2
        assert not standby.others_leading
        assert await leadership(standby) == 200
        await leader.task  # an orderly end
        assert await leadership(leader) == 404


@on_both_loops
async def test_a_leader_that_is_cut_off_stops_before_the_standby_starts() -> None:
    async with leader_and_member() as (shard, leader, standby):
        leader.pipe.freeze()
        leader.storage_cut = True
        await eventually(lambda: standby.leads, "the standby's term")
        assert not standby.others_leading
        assert shard.lease().holder.server == "server-2"
        leader.storage_cut = False
        await eventually(lambda: leader.elector.term is None, "the old leader's insight")


@on_both_loops
async def test_a_leader_that_still_reaches_the_store_keeps_leading_without_its_standby() -> None:
    async with leader_and_member() as (shard, leader, standby):
        sequence = shard.lease().sequence
        leader.pipe.freeze()
        await eventually(lambda: shard.lease().sequence >= sequence + 6, "renewals in the store")
        await eventually(lambda: leader.leads, "the leader leads")
        assert not standby.terms
