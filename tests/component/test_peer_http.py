"""Links between servers over real TLS: who is let in, and what ends them."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Callable

import aiohttp
import pytest

from component.peer_world import (
    Side,
    client_side,
    closed,
    dialer,
    fingerprint,
    linked,
    listening,
    received,
    server_side,
)
from component.wire_world import CHANCE, CLUSTER, SECONDS, SHARD, Paper, Pipe, World, on_both_loops
from nstance.objects import lease as leases
from nstance.pki import ca, fields, keys
from nstance.server.election import peer_http, peers
from nstance.wire.http_listener import Limits
from support.eventually import eventually

JOIN = peers.Join("server-2", "inc-2", ("127.0.0.1:1",), "ab")
BEAT = peers.Heartbeat(epoch=1, sequence=2, version="v", tail=3, number=4, member=False)


# ---- links


@on_both_loops
async def test_a_link_carries_messages_both_ways_and_knows_its_ends() -> None:
    world = World()
    other = world.server(id="server-2")
    async with listening(world) as side:
        here = await dialer(world, other).dial((side.address,), fingerprint(side.paper))
        here.send(JOIN)
        await eventually(lambda: side.links)
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
    async with listening(world) as side, Pipe(side.server.listener.port) as pipe:
        here = await dialer(world, world.server(id="server-2")).dial(
            (f"127.0.0.1:{pipe.port}",), fingerprint(side.paper)
        )
        await eventually(lambda: side.links)
        pipe.freeze()
        there = side.links[0]
        there.send(BEAT)
        there.close()
        side.released.set()
        await closed(there)
        await eventually(lambda: not side.server.listener._per_address, "the connection's end")
        here.close()


async def test_closing_tells_whoever_waits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (peer_http, "GOODBYE_SECONDS"),
        (peer_http, "SILENCE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 1000.0)
    world = World()
    async with (
        listening(world, limits=Limits(shutdown_seconds=1000.0)) as side,
        Pipe(side.server.listener.port) as pipe,
    ):
        here = await dialer(world, world.server(id="server-2")).dial(
            (f"127.0.0.1:{pipe.port}",), fingerprint(side.paper)
        )
        await eventually(lambda: side.links)
        pipe.freeze()  # a polite goodbye would wait for its answer
        waiting = asyncio.create_task(closed(side.links[0]))
        await asyncio.sleep(0)
        side.links[0].close()
        await waiting
        here.close()


@on_both_loops
async def test_who_says_nothing_is_cut_off_and_a_link_is_not() -> None:
    world = World()
    side = Side(world, world.server(), Limits(request_seconds=1.0))
    await side.server.listener.start("127.0.0.1", 0)
    here = await dialer(world, world.server(id="server-2")).dial((side.address,), fingerprint(side.paper))
    await eventually(lambda: side.links)
    context = world.client_context()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", side.server.listener.port, ssl=context, server_hostname=""
    )
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(SECONDS):
            await reader.read()  # until it is cut off; the link is older
    writer.transport.abort()
    side.links[0].send(BEAT)
    assert await received(here) == BEAT
    here.close()
    await side.server.listener.close()


async def test_a_client_that_never_shakes_hands_is_cut_off() -> None:
    async with listening(World(), limits=Limits(handshake_seconds=0.2)) as side:
        reader, writer = await asyncio.open_connection("127.0.0.1", side.server.listener.port)
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        await eventually(lambda: not side.server.listener._per_address, "the connection's end")


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
        pytest.param(b"x" * 5000, peers.LinkClosedError, id="too big"),
        pytest.param(b"not json", peers.BadMessageError, id="not JSON"),
        pytest.param(b"5", peers.BadMessageError, id="not an object"),
        pytest.param(b"[" * 4000, peers.BadMessageError, id="deep"),
        pytest.param(b'{"kind":"promise","epoch":"1","number":2}', peers.BadMessageError, id="wrong type"),
        pytest.param(b'{"kind":"surrender"}', peers.BadMessageError, id="unknown kind"),
        pytest.param("text", peers.LinkClosedError, id="a text frame"),
    ],
)
async def test_what_no_peer_says_ends_the_link(frame: bytes | str, error: type[Exception]) -> None:
    world = World()
    async with listening(world) as side, aiohttp.ClientSession() as session:
        context = client_side(world, world.server(id="server-2"))
        async with session.ws_connect(f"wss://{side.address}/peer", ssl=context) as raw:
            await (raw.send_bytes(frame) if isinstance(frame, bytes) else raw.send_str(frame))
            await eventually(lambda: side.links)
            with pytest.raises(error):
                await received(side.links[0])
            side.released.set()


async def test_small_messages_leave_at_once() -> None:
    async with linked(World()) as (_, there, here):
        for link in (there, here):
            assert isinstance(link, peer_http._Link)
            raw = link.transport.get_extra_info("socket")
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
        with pytest.raises(peers.LinkClosedError, match="403"):
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
        with pytest.raises(peers.LinkClosedError):
            await peer_http.HttpDialer(lambda: mixed, cluster=CLUSTER, shard=SHARD).dial(
                (side.address,), fingerprint(side.paper)
            )
        with pytest.raises(peers.LinkClosedError, match="certificate"):
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
    last_seen: list[bytes] = []
    ended = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            last_seen.append(await reader.read())
        writer.transport.abort()
        ended.set()

    impostor = make(world)
    context = server_side(world, impostor)
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    meant = world.server() if "key" in why else impostor
    with pytest.raises(peers.LinkClosedError, match=why):
        await dialer(world, world.server(id="server-2")).dial((address,), fingerprint(meant))
    async with asyncio.timeout(SECONDS):
        await ended.wait()
    server.close()
    assert b"".join(last_seen) == b""


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
    with pytest.raises(peers.LinkClosedError):
        await dialer(world, world.server(id="server-2")).dial(addresses, key)


@on_both_loops
async def test_only_a_host_that_refuses_is_reported_as_refusing() -> None:
    """A standby takes it for a leader whose process is gone."""
    world = World()
    dial = dialer(world, world.server(id="server-2")).dial
    async with listening(world) as side:
        alive, key = side.address, fingerprint(side.paper)
    # The server is closed, the host is not.
    with pytest.raises(peers.PeerRefusedError):
        await dial((alive, alive), key)
    async with listening(world, world.server(id="server-3")) as other:
        with pytest.raises(peers.LinkClosedError) as caught:
            await dial((alive, other.address), key)
        assert not isinstance(caught.value, peers.PeerRefusedError), "somebody else listens there now"
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        with pytest.raises(peers.LinkClosedError) as caught:
            await dial((alive, f"127.0.0.1:{deaf.getsockname()[1]}"), key)
        assert not isinstance(caught.value, peers.PeerRefusedError), "silence is no refusal"
    with pytest.raises(peers.LinkClosedError) as caught:
        await dial((), key)
    assert not isinstance(caught.value, peers.PeerRefusedError)


async def test_before_there_is_a_ca_nobody_links() -> None:
    world = World()
    async with listening(world) as side:
        with pytest.raises(peers.LinkClosedError, match="no certificate yet"):
            await peer_http.HttpDialer(lambda: None, cluster=CLUSTER, shard=SHARD).dial((side.address,), "ab" * 32)
        side.context = None
        with pytest.raises(peers.LinkClosedError):
            await dialer(world, world.server(id="server-2")).dial((side.address,), fingerprint(side.paper))


async def test_a_renewed_certificate_is_used_by_the_next_connection() -> None:
    world = World()
    async with listening(world) as side:
        first = await dialer(world, world.server(id="server-2")).dial((side.address,), fingerprint(side.paper))
        renewed = world.server()
        side.context = server_side(world, renewed)
        second = await dialer(world, world.server(id="server-3")).dial((side.address,), fingerprint(renewed))
        await eventually(lambda: len(side.links) == 2)
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
async def test_the_election_port_serves_nothing_else(path: str) -> None:
    world = World()
    context = client_side(world, world.server(id="server-2"))
    async with listening(world) as side, aiohttp.ClientSession() as session:
        async with session.get(f"https://{side.address}{path}", ssl=context) as response:
            assert response.status == 404
        async with session.post(f"https://{side.address}{peer_http.LEADERSHIP}", ssl=context) as response:
            assert response.status == 405


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
async def test_older_tls_is_refused(version: ssl.TLSVersion) -> None:
    world = World()
    context = world.client_context()
    context.minimum_version = context.maximum_version = version
    async with listening(world) as side, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"https://{side.address}{peer_http.LEADERSHIP}", ssl=context)


async def test_the_leader_is_named_although_many_idle_clients_connect() -> None:
    """Links stay: only what waits makes room."""
    world = World()
    anonymous = world.client_context()
    anonymous.set_alpn_protocols(["http/1.1"])
    async with linked(world, Limits(connections=20)) as (side, there, here), aiohttp.ClientSession() as session:
        side.lease = LEASE
        idle = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", side.server.listener.port) for _ in range(100))
        )
        for _ in range(3):
            async with session.get(f"https://{side.address}{peer_http.LEADERSHIP}", ssl=anonymous) as response:
                assert response.status == 200
        here.send(peers.Promise(1, 1))
        assert await received(there) == peers.Promise(1, 1)
        for _, writer in idle:
            writer.transport.abort()
