"""Links between servers over real TLS: who is let in, what ends them, and two real electors that use them."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from component.wire_world import CHANCE, CLOCK, CLUSTER, SECONDS, SHARD, Paper, Pipe, World, on_both_loops, until
from nstance.core import election as rules
from nstance.objects import errors
from nstance.objects import lease as leases
from nstance.objects.memory import Fate, MemoryStore
from nstance.objects.port import Key
from nstance.pki import ca, fields, keys
from nstance.server import peer_http, peers
from nstance.server.election import Elector
from nstance.server.seat import Seat
from nstance.server.term import Term
from nstance.wire import door

JOIN = peers.Join("server-2", "inc-2", ("127.0.0.1:1",), "ab")
BEAT = peers.Heartbeat(epoch=1, sequence=2, version="v", tail=3, number=4, member=False)


def server_side(world: World, paper: Paper) -> ssl.SSLContext:
    return peer_http.server_context(certificate_pem=paper.certificate_pem, key_pem=paper.key_pem, ca_pem=world.ca.pem)


def client_side(world: World, paper: Paper) -> ssl.SSLContext:
    return peer_http.client_context(certificate_pem=paper.certificate_pem, key_pem=paper.key_pem, ca_pem=world.ca.pem)


def fingerprint(paper: Paper) -> str:
    return peer_http.key_fingerprint(ssl.PEM_cert_to_DER_cert(paper.certificate_pem))


class Side:
    """A listening server that keeps the links it was given."""

    def __init__(self, world: World, paper: Paper) -> None:
        self.paper = paper
        self.links: list[peers.Link] = []
        self.lease: leases.Lease | None = None
        self.context: ssl.SSLContext | None = server_side(world, paper)
        self.released = asyncio.Event()
        self.server = peer_http.PeerServer(
            accept=self.accept, held=lambda: self.lease, context=lambda: self.context, cluster=CLUSTER, shard=SHARD
        )

    async def accept(self, link: peers.Link) -> None:
        self.links.append(link)
        await self.released.wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def listening(world: World, paper: Paper | None = None) -> AsyncIterator[Side]:
    side = Side(world, paper or world.server())
    await side.server.start("127.0.0.1", 0)
    try:
        yield side
    finally:
        await side.server.close()


def dialer(world: World, paper: Paper, shard: str = SHARD) -> peer_http.HttpDialer:
    context = client_side(world, paper)
    return peer_http.HttpDialer(lambda: context, cluster=CLUSTER, shard=shard)


@asynccontextmanager
async def linked(world: World) -> AsyncIterator[tuple[Side, peers.Link, peers.Link]]:
    """(the listening side, its end of the link, the caller's end)"""
    async with listening(world) as side:
        here = await dialer(world, world.server(id="server-2")).dial((side.address,), fingerprint(side.paper))
        try:
            await until(lambda: side.links, "the link")
            yield side, side.links[0], here
        finally:
            here.close()


async def received(link: peers.Link) -> peers.Message:
    async with asyncio.timeout(SECONDS):
        return await link.receive()


async def closed(link: peers.Link) -> None:
    with pytest.raises(peers.LinkClosed):
        await received(link)


# ---- links


@on_both_loops
async def test_a_link_carries_messages_both_ways_and_knows_its_ends() -> None:
    world = World()
    other = world.server(id="server-2")
    async with listening(world) as side:
        here = await dialer(world, other).dial((side.address,), fingerprint(side.paper))
        here.send(JOIN)
        await until(lambda: side.links)
        there = side.links[0]
        assert await received(there) == JOIN
        assert (there.server, there.fingerprint) == ("server-2", fingerprint(other))
        assert (here.server, here.fingerprint) == ("server-1", fingerprint(side.paper))
        for number in range(20):
            there.send(peers.Heartbeat(1, 2, "v", 3, number, True))
        there.send(peers.Released(1, "w"))
        there.close()  # what was sent before still arrives
        for number in range(20):
            assert await received(here) == peers.Heartbeat(1, 2, "v", 3, number, True)
        assert await received(here) == peers.Released(1, "w")
        await closed(here)
        here.close()


def test_the_fingerprint_is_the_leases() -> None:
    key = keys.generate(CHANCE)
    world = World()
    issued = world.ca.issue_workload(
        ca.WorkloadSpec(usages=frozenset({ca.Usage.SERVER}), subject=peer_subject()),
        keys.public_bytes(key),
        serial=ca.new_serial(CHANCE),
        issued=world.now,
    )
    assert peer_http.key_fingerprint(ssl.PEM_cert_to_DER_cert(issued.pem)) == keys.fingerprint(keys.public_bytes(key))
    assert issued.key_fingerprint == keys.fingerprint(keys.public_bytes(key))


def peer_subject() -> fields.Subject:
    return fields.Subject(cn="anything")


@on_both_loops
async def test_closing_either_end_ends_both() -> None:
    async with linked(World()) as (_, there, here):
        waiting = asyncio.create_task(closed(here))
        await asyncio.sleep(0)
        here.close()
        await waiting
        await closed(there)
        here.send(JOIN)  # says nothing, raises nothing
        await closed(here)
    async with linked(World()) as (_, there, here):
        there.close()
        await closed(there)
        await closed(here)


@on_both_loops
async def test_closing_ends_a_link_whose_other_side_is_silent_for_good() -> None:
    world = World()
    async with listening(world) as side, Pipe(side.server.port) as pipe:
        here = await dialer(world, world.server(id="server-2")).dial(
            (f"127.0.0.1:{pipe.port}",), fingerprint(side.paper)
        )
        await until(lambda: side.links)
        pipe.freeze()
        there = side.links[0]
        there.send(BEAT)
        there.close()
        side.released.set()
        await closed(there)
        await until(lambda: not side.server._door._per_address, "the connection's end")
        here.close()


async def test_closing_tells_whoever_waits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((peer_http, "GOODBYE_SECONDS"), (peer_http, "SILENCE_SECONDS"), (door, "SHUTDOWN_SECONDS")):
        monkeypatch.setattr(module, name, 1000.0)
    world = World()
    async with listening(world) as side, Pipe(side.server.port) as pipe:
        here = await dialer(world, world.server(id="server-2")).dial(
            (f"127.0.0.1:{pipe.port}",), fingerprint(side.paper)
        )
        await until(lambda: side.links)
        pipe.freeze()  # a polite goodbye would wait for its answer
        waiting = asyncio.create_task(closed(side.links[0]))
        await asyncio.sleep(0)
        side.links[0].close()
        await waiting
        here.close()


@on_both_loops
async def test_b24_who_says_nothing_is_cut_off_and_a_link_is_not() -> None:
    world = World()
    side = Side(world, world.server())
    side.server._door._request_seconds = 0.3
    await side.server.start("127.0.0.1", 0)
    here = await dialer(world, world.server(id="server-2")).dial((side.address,), fingerprint(side.paper))
    await until(lambda: side.links)
    context = world.client_context()
    reader, writer = await asyncio.open_connection("127.0.0.1", side.server.port, ssl=context, server_hostname="")
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(SECONDS):
            await reader.read()  # until it is cut off; the link is older
    writer.transport.abort()
    side.links[0].send(BEAT)
    assert await received(here) == BEAT
    here.close()
    await side.server.close()


async def test_b24_a_client_that_never_shakes_hands_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HANDSHAKE_SECONDS", 0.2)
    async with listening(World()) as side:
        reader, writer = await asyncio.open_connection("127.0.0.1", side.server.port)
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        await until(lambda: not side.server._door._per_address, "the connection's end")


async def test_silence_ends_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_http, "SILENCE_SECONDS", 0.1)
    async with linked(World()) as (_, there, here):
        await closed(here)
        await closed(there)


@on_both_loops
async def test_a_peer_that_does_not_keep_up_is_closed_and_sending_never_waits() -> None:
    async with linked(World()) as (_, there, here):
        for _ in range(peer_http.MAX_QUEUED + 1):  # without a turn of the event loop in between
            there.send(BEAT)
        await closed(there)
        await closed(here)


async def test_a_message_beyond_the_limit_is_not_sent() -> None:
    async with linked(World()) as (_, there, here):
        here.send(peers.Join("server-2", "i", ("x" * 5000,), "ab"))
        await closed(here)
        await closed(there)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        pytest.param(b"x" * 5000, peers.LinkClosed, id="too big"),
        pytest.param(b"not json", peers.BadMessage, id="not JSON"),
        pytest.param(b"5", peers.BadMessage, id="not an object"),
        pytest.param(b"[" * 4000, peers.BadMessage, id="deep"),
        pytest.param(b'{"kind":"promise","epoch":"1","number":2}', peers.BadMessage, id="wrong type"),
        pytest.param(b'{"kind":"surrender"}', peers.BadMessage, id="unknown kind"),
        pytest.param("text", peers.LinkClosed, id="a text frame"),
    ],
)
async def test_what_no_peer_says_ends_the_link(frame: bytes | str, error: type[Exception]) -> None:
    world = World()
    async with listening(world) as side, aiohttp.ClientSession() as session:
        context = client_side(world, world.server(id="server-2"))
        async with session.ws_connect(f"wss://{side.address}/peer", ssl=context) as raw:
            await (raw.send_bytes(frame) if isinstance(frame, bytes) else raw.send_str(frame))
            await until(lambda: side.links)
            with pytest.raises(error):
                await received(side.links[0])
            side.released.set()


async def test_small_messages_leave_at_once() -> None:
    async with linked(World()) as (_, there, here):
        for link in (there, here):
            assert isinstance(link, peer_http._Link)
            raw = link._transport.get_extra_info("socket")
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_links_are_not_compressed() -> None:
    world = World()
    async with listening(world) as side, aiohttp.ClientSession() as session:
        context = client_side(world, world.server(id="server-2"))
        async with session.ws_connect(f"wss://{side.address}/peer", ssl=context, compress=15) as raw:
            assert not raw.compress
            side.released.set()


# ---- who is let in


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(lambda w: w.server(shard="zone-b"), "expected a server of demo/zone-a", id="another shard"),
        pytest.param(lambda w: w.agent(), "expected a server of demo/zone-a", id="an agent"),
        pytest.param(lambda w: w.operator(), "expected a server of demo/zone-a", id="an operator"),
        pytest.param(lambda w: w.workload(*ca.Usage), "lacks an extension", id="a workload certificate"),
    ],
)
async def test_only_servers_of_the_shard_may_link(
    make: Callable[[World], Paper], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    async with listening(world) as side:
        with pytest.raises(peers.LinkClosed, match="403"):
            await dialer(world, make(world)).dial((side.address,), fingerprint(side.paper))
        assert not side.links
    assert why in str([r.__dict__.get("error") for r in caplog.records])


async def test_without_a_certificate_there_is_no_link() -> None:
    world = World()
    context = world.client_context()
    context.set_alpn_protocols(["http/1.1"])
    async with listening(world) as side, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await session.ws_connect(f"wss://{side.address}/peer", ssl=context)
        assert refusal.value.status == 403
        with contextlib.suppress(aiohttp.ClientError):  # and a link is a WebSocket
            paper = client_side(world, world.server(id="server-2"))
            async with session.get(f"https://{side.address}/peer", ssl=paper) as response:
                assert response.status == 400
        assert not side.links


@on_both_loops
async def test_a_caller_from_another_ca_is_refused_and_so_is_such_a_server() -> None:
    world, stranger = World(), World()
    async with listening(world) as side:
        paper = stranger.server(id="server-2")
        mixed = peer_http.client_context(
            certificate_pem=paper.certificate_pem, key_pem=paper.key_pem, ca_pem=world.ca.pem
        )
        with pytest.raises(peers.LinkClosed):
            await peer_http.HttpDialer(lambda: mixed, cluster=CLUSTER, shard=SHARD).dial(
                (side.address,), fingerprint(side.paper)
            )
        with pytest.raises(peers.LinkClosed, match="certificate"):
            await dialer(stranger, paper).dial((side.address,), fingerprint(side.paper))
        assert not side.links


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(lambda w: w.server(), "expected the key", id="another key"),
        pytest.param(lambda w: w.server(shard="zone-b"), "expected a server of", id="another shard"),
        pytest.param(lambda w: w.workload(*ca.Usage), "lacks an extension", id="a workload certificate"),
    ],
)
@on_both_loops
async def test_nothing_is_sent_to_a_server_that_is_not_the_one_meant(make: Callable[[World], Paper], why: str) -> None:
    world = World()
    heard: list[bytes] = []
    ended = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            heard.append(await reader.read())
        writer.transport.abort()
        ended.set()

    impostor = make(world)
    context = server_side(world, impostor)
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    meant = world.server() if "key" in why else impostor
    with pytest.raises(peers.LinkClosed, match=why):
        await dialer(world, world.server(id="server-2")).dial((address,), fingerprint(meant))
    async with asyncio.timeout(SECONDS):
        await ended.wait()
    server.close()
    assert b"".join(heard) == b""


async def test_addresses_are_tried_in_turn() -> None:
    world = World()
    free = socket.create_server(("127.0.0.1", 0))
    nobody = f"127.0.0.1:{free.getsockname()[1]}"  # accepts, and never shakes hands
    async with listening(world) as wrong, listening(world, world.server()) as right:
        link = await dialer(world, world.server(id="server-2")).dial(
            ("not an address", "127.0.0.1:1", nobody, wrong.address, right.address), fingerprint(right.paper)
        )
        assert link.fingerprint == fingerprint(right.paper)
        link.close()
        assert not wrong.links
    free.close()


@pytest.mark.parametrize(
    ("addresses", "key"),
    [((), "ab" * 32), (("127.0.0.1:1",), "ab" * 32), (("[::1", "a b", "x/y?z#"), "ab" * 32), (("127.0.0.1:1",), "no")],
)
async def test_anything_wrong_is_a_closed_link(addresses: tuple[str, ...], key: str) -> None:
    world = World()
    with pytest.raises(peers.LinkClosed):
        await dialer(world, world.server(id="server-2")).dial(addresses, key)


async def test_before_there_is_a_ca_nobody_links() -> None:
    world = World()
    async with listening(world) as side:
        with pytest.raises(peers.LinkClosed, match="no certificate yet"):
            await peer_http.HttpDialer(lambda: None, cluster=CLUSTER, shard=SHARD).dial((side.address,), "ab" * 32)
        side.context = None
        with pytest.raises(peers.LinkClosed):
            await dialer(world, world.server(id="server-2")).dial((side.address,), fingerprint(side.paper))


async def test_a_renewed_certificate_is_used_by_the_next_connection() -> None:
    world = World()
    async with listening(world) as side:
        first = await dialer(world, world.server(id="server-2")).dial((side.address,), fingerprint(side.paper))
        renewed = world.server()
        side.context = server_side(world, renewed)
        second = await dialer(world, world.server(id="server-3")).dial((side.address,), fingerprint(renewed))
        await until(lambda: len(side.links) == 2)
        side.links[0].send(BEAT)
        assert await received(first) == BEAT  # the old link goes on
        first.close()
        second.close()


# ---- who leads


LEASE = leases.Lease(
    epoch=3, sequence=9, op="o", holder=leases.Holder(server="a", incarnation="i"), free=False, length=2.0, promise=2.0
)


@on_both_loops
async def test_the_leader_shows_its_lease_to_anybody_and_the_others_do_not() -> None:
    world = World()
    anonymous = world.client_context()
    anonymous.set_alpn_protocols(["h2", "http/1.1"])
    async with listening(world) as side, aiohttp.ClientSession() as session:
        url = f"https://{side.address}{peer_http.LEADERSHIP}"
        async with session.get(url, ssl=anonymous) as response:
            assert response.status == 404
        side.lease = LEASE
        async with session.get(url, ssl=anonymous) as response:
            assert response.status == 200
            assert response.content_type == "application/json"
            body = json.loads(await response.read())
        assert leases.decode(leases.encode(LEASE)) == LEASE
        assert (body["epoch"], body["holder"]["server"], body["state"]) == (3, "a", "held")


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/health/leadership", "/peer/x"])
async def test_b33_the_election_port_serves_nothing_else(path: str) -> None:
    world = World()
    context = client_side(world, world.server(id="server-2"))
    async with listening(world) as side, aiohttp.ClientSession() as session:
        async with session.get(f"https://{side.address}{path}", ssl=context) as response:
            assert response.status == 404
        async with session.post(f"https://{side.address}{peer_http.LEADERSHIP}", ssl=context) as response:
            assert response.status == 405


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
async def test_b25_older_tls_is_refused(version: ssl.TLSVersion) -> None:
    world = World()
    context = world.client_context()
    context.minimum_version = context.maximum_version = version
    async with listening(world) as side, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"https://{side.address}{peer_http.LEADERSHIP}", ssl=context)


# ---- two electors


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
        return Fate(before=5.0, error=errors.Unavailable("cut off")) if self.storage_cut else Fate()

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
        await server.start("127.0.0.1", 0)
        self.server = server
        self.pipe = await stack.enter_async_context(Pipe(server.port))
        self.elector = Elector(
            Seat(
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
                chance=CHANCE,
            ),
            dialer=dialer(world, self.paper),
            lead=self._lead,
            tail=lambda: 0,
            floor=self._floor,
        )
        self.task = asyncio.create_task(self.elector.run())
        try:
            yield
        finally:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            await server.close()

    async def _floor(self) -> int:
        return 0


@asynccontextmanager
async def leader_and_member() -> AsyncIterator[tuple[Shard, Member, Member]]:
    async with contextlib.AsyncExitStack() as stack:
        shard = Shard()
        leader = await shard.add(stack, "server-1")
        await until(lambda: leader.leads, "a first leader")
        standby = await shard.add(stack, "server-2")
        await until(lambda: [m.server for m in shard.lease().members] == ["server-2"], "the standby in the lease")
        yield shard, leader, standby


async def leadership(member: Member) -> int:
    context = member.shard.world.client_context()
    context.set_alpn_protocols(["http/1.1"])
    url = f"https://127.0.0.1:{member.server.port}{peer_http.LEADERSHIP}"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
        return response.status


@on_both_loops
async def test_a_standby_joins_and_leads_as_soon_as_the_lease_is_given_back() -> None:
    async with leader_and_member() as (shard, leader, standby):
        assert [await leadership(leader), await leadership(standby)] == [200, 404]
        member = shard.lease().members[0]
        assert member.fingerprint == fingerprint(standby.paper)
        leader.elector.stop()
        await until(lambda: standby.leads, "the standby's term")
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
        await until(lambda: standby.leads, "the standby's term")
        assert not standby.others_leading
        assert shard.lease().holder.server == "server-2"
        leader.storage_cut = False
        await until(lambda: leader.elector.term is None, "the old leader's insight")


@on_both_loops
async def test_a_leader_that_still_reaches_the_store_keeps_leading_without_its_standby() -> None:
    async with leader_and_member() as (shard, leader, standby):
        sequence = shard.lease().sequence
        leader.pipe.freeze()
        await until(lambda: shard.lease().sequence >= sequence + 6, "renewals in the store")
        await until(lambda: leader.leads, "the leader leads")
        assert not standby.terms
