"""Peers without manners: floods, slowness, other protocols. An honest neighbour is served all the while."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import h2.events
import hpack
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame

from component.wire_world import (
    FILES,
    HEADERS,
    HEALTH,
    KEYS,
    SECONDS,
    Raw,
    World,
    agents,
    framed,
    listening,
    on_both_loops,
    raw,
    wait_for_ever,
)
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import call, limits, listener, status, tls
from support.eventually import eventually

WORLD = World()
AGENT = WORLD.agent()
CALM = ErrorCodes.ENHANCE_YOUR_CALM


@asynccontextmanager
async def attacked(service: Any = None, **given: Any) -> AsyncIterator[tuple[listener.Listener, Raw]]:
    """A port, an attacker, and a neighbour who is served before and after."""
    async with (
        listening(WORLD, service or agents(), **given) as port,
        WORLD.channel(port.port, AGENT) as neighbour,
        raw(WORLD, port.port, AGENT) as attacker,
    ):
        stub = agent_grpc.AgentServiceStub(neighbour)
        async with stub.SubmitHealthReport.open() as stream:
            await stream.send_message(agent_pb2.AgentMessage())
            await stream.recv_message()
            await attacker.until(lambda: attacker.events)
            yield port, attacker
            await stream.send_message(agent_pb2.AgentMessage())
            assert await stream.recv_message() is not None
            await stream.end()


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        pytest.param(struct.pack(">HBBBL", 0, 8, 6, 0, 0) + b"pingping", "too many pings", id="pings"),
        pytest.param(bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 9]), "too many settings", id="settings"),
        pytest.param(bytes([0, 0, 5, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 1]), "too many empty frames", id="priorities"),
        pytest.param(bytes([0, 0, 0, 77, 0, 0, 0, 0, 0]), "too many unknown frames", id="unknown types"),
    ],
)
@on_both_loops
async def test_frames_that_only_cost_us(frame: bytes, reason: str) -> None:
    async with attacked() as (port, attacker):
        attacker.send(frame * 5_000)
        await attacker.until_gone()
        assert attacker.goodbye() == CALM
        await eventually(lambda: port.refused == [reason])


async def test_a_few_of_them_are_fine() -> None:
    async with attacked() as (port, attacker):
        attacker.send(bytes([0, 0, 0, 77, 0, 0, 0, 0, 0]) * 10)
        for _ in range(10):
            attacker.h2.ping(b"pingping")
            attacker.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 70_000})
            attacker.send()
        stream = attacker.request(KEYS)
        attacker.data(stream, framed(b""), end=True)
        assert (await attacker.status(stream))[0] == Status.OK.value
        assert not port.refused


@on_both_loops
async def test_rapid_reset() -> None:
    """CVE-2023-44487: streams opened and reset in one breath, as fast as the wire carries them."""
    service = agents(SubmitPublicKeys=wait_for_ever)
    async with attacked(service, limits=limits.Limits(resets=50)) as (port, attacker):
        for _ in range(2_000):
            stream = attacker.h2.get_next_available_stream_id()
            attacker.h2.send_headers(stream, [*HEADERS, (":path", KEYS)])
            attacker.h2.reset_stream(stream)
        attacker.send()
        await attacker.until_gone()
        await eventually(lambda: port.refused == ["too many resets"])
        assert len(service.entered) < 200


async def test_streams_that_are_reset_are_forgotten() -> None:
    """A call that is cancelled before it began must not stay in any table."""
    async with attacked(agents(SubmitPublicKeys=wait_for_ever)) as (port, attacker):
        for _ in range(100):
            stream = attacker.request(KEYS)
            attacker.h2.reset_stream(stream)
        attacker.h2.ping(b"and then")
        attacker.send()
        await attacker.until(lambda: any(isinstance(e, h2.events.PingAckReceived) for e in attacker.events))
        assert len(port._protocols) == 2
        await eventually(lambda: sum(len(p.processor.streams) for p in port._protocols) == 1)  # the neighbour's
        await eventually(lambda: sum(len(p.calls.tasks) for p in port._protocols) == 1)


@on_both_loops
async def test_ten_thousand_streams() -> None:
    service = agents(SubmitPublicKeys=wait_for_ever)
    async with attacked(service) as (port, attacker):
        block = hpack.Encoder().encode([*HEADERS, (":path", KEYS)])
        frames = (HeadersFrame(2 * n + 1, data=block, flags=["END_HEADERS"]).serialize() for n in range(10_000))
        attacker.writer.write(b"".join(frames))
        await attacker.until_gone()
        assert len(service.entered) <= limits.Limits().max_streams + 1
        await eventually(lambda: len(port.refused) == 1)


async def test_calls_that_outlive_their_streams_count_against_the_limit() -> None:
    release = asyncio.Event()

    async def stubborn(stream: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await release.wait()
        await release.wait()

    service = agents(SubmitPublicKeys=stubborn)
    try:
        async with attacked(service, limits=limits.Limits(max_streams=4)) as (_, attacker):
            for count in range(4):
                stream = attacker.request(KEYS)
                await eventually(lambda count=count: len(service.entered) == count + 2)  # the neighbour's is the first
                attacker.h2.reset_stream(stream)
                attacker.send()
            refused = attacker.request(KEYS)
            await attacker.until(lambda: any(isinstance(e, h2.events.StreamReset) for e in attacker.events))
            event = next(e for e in attacker.events if isinstance(e, h2.events.StreamReset))
            assert (event.stream_id, event.error_code) == (refused, ErrorCodes.REFUSED_STREAM)
    finally:
        release.set()


@on_both_loops
async def test_metadata_beyond_the_limit() -> None:
    async with attacked() as (port, attacker):
        attacker.request(KEYS, *((f"x-{n}", "y" * 1000) for n in range(70)))
        await attacker.until_gone()
        assert attacker.goodbye() == CALM
        await eventually(lambda: port.refused)
        assert port.refused[0].startswith("invalid HTTP/2")


async def test_headers_without_end() -> None:
    """CONTINUATION frames for ever: neither kept nor parsed for ever."""
    async with attacked() as (port, attacker):
        first = HeadersFrame(1, data=b"\x00")
        more = ContinuationFrame(1, data=b"\x00" * 16_000)
        attacker.send(first.serialize() + more.serialize() * 200)
        await attacker.until_gone()
        await eventually(lambda: port.refused)


async def test_metadata_that_is_not_ascii() -> None:
    async with attacked() as (port, attacker):
        attacker.request(KEYS, ("x-name", "ä"))
        await attacker.until_gone()
        await eventually(lambda: port.refused)
        assert port.refused[0].startswith("invalid HTTP/2")


async def test_empty_data_frames() -> None:
    async with attacked() as (port, attacker):
        stream = attacker.request(HEALTH)
        attacker.send(DataFrame(stream, data=b"").serialize() * 5_000)
        await attacker.until_gone()
        await eventually(lambda: port.refused == ["too many empty frames"])


@on_both_loops
async def test_a_reader_without_a_window_is_cut_off() -> None:
    """The stream is half-closed and never read: what waits to be sent is bounded, and so is the wait."""
    sent = 0

    async def pour(stream: Any) -> None:
        nonlocal sent
        while True:
            await stream.send_message(agent_pb2.FileMessage(file=agent_pb2.File(content=bytes(1000))))
            sent += 1

    quick = limits.Limits(stall_seconds=0.3)
    async with attacked(agents(ReceiveFiles=pour), limits=quick) as (_, attacker):
        stream = attacker.request(FILES)
        attacker.data(stream, framed(b""), end=True)
        code, message = await attacker.status(stream)  # without ever acknowledging a byte
        assert (code, message) == (Status.RESOURCE_EXHAUSTED.value, "the peer read nothing for 0.3 s")
        assert sent <= 66


@on_both_loops
async def test_a_client_that_is_cut_off_in_the_middle_of_a_message_gets_the_servers_reason() -> None:
    ended = asyncio.Event()

    async def send_more_than_a_window(stream: Any) -> None:
        try:
            await stream.send_message(agent_pb2.FileMessage(file=agent_pb2.File(content=bytes(100_000))))
        finally:
            ended.set()

    async def read_late(stub: agent_grpc.AgentServiceStub) -> None:
        async with stub.ReceiveFiles.open() as stream:
            await stream.send_message(agent_pb2.ReceiveFilesRequest(), end=True)
            await stream.recv_initial_metadata()
            await asyncio.wait_for(ended.wait(), SECONDS)
            await stream.recv_message()

    service = agents(ReceiveFiles=send_more_than_a_window)
    async with (
        listening(WORLD, service, limits=limits.Limits(stall_seconds=0.2)) as port,
        WORLD.channel(port.port, AGENT) as channel,
    ):
        with pytest.raises(GRPCError, match="the peer read nothing") as refused:
            await read_late(agent_grpc.AgentServiceStub(channel))
    assert refused.value.status is Status.RESOURCE_EXHAUSTED


@on_both_loops
async def test_a_peer_that_does_not_read_its_socket_is_cut_off() -> None:
    """Its HTTP/2 window is wide open, its TCP window is not, and it keeps sending so as not to seem silent."""

    async def pour(stream: Any) -> None:
        while True:
            await stream.send_message(agent_pb2.FileMessage(file=agent_pb2.File(content=bytes(100_000))))

    quick = limits.Limits(stall_seconds=0.2, pings=1_000_000, ping_after=60, first_message_seconds=60)
    async with attacked(agents(ReceiveFiles=pour), limits=quick) as (port, attacker):
        attacker.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
        attacker.h2.increment_flow_control_window(2**30)
        stream = attacker.request(FILES)
        attacker.data(stream, framed(b""), end=True)
        async with asyncio.timeout(SECONDS):
            while not port.refused and not attacker.writer.transport.is_closing():
                attacker.h2.ping(b"not dead")
                attacker.send()
                await asyncio.sleep(0.02)
        await eventually(lambda: port.refused == ["the peer reads nothing"])


@on_both_loops
async def test_tcp_without_tls() -> None:
    quick = limits.Limits(handshake_seconds=1.5)
    async with attacked(limits=quick) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b""
        writer.close()
        await eventually(lambda: port.refused == ["handshake: too slow"])


@on_both_loops
async def test_a_handshake_of_one_byte_at_a_time() -> None:
    quick = limits.Limits(handshake_seconds=1.5)
    async with attacked(limits=quick) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        drip = asyncio.create_task(drop_by_drop(writer, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)))
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        drip.cancel()
        writer.transport.abort()
        await eventually(lambda: len(port.refused) == 1)
        await eventually(lambda: port.refused)
        assert port.refused[0].startswith("handshake")


async def drop_by_drop(writer: asyncio.StreamWriter, data: bytes) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)


@on_both_loops
async def test_tls_without_http2() -> None:
    quick = limits.Limits(first_message_seconds=1.5)
    async with listening(WORLD, limits=quick) as port, raw(WORLD, port.port, AGENT, preface=False) as mute:
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(OSError):
                await mute.reader.read()
        await eventually(lambda: port.refused == ["no call in time after the handshake"])


async def test_http2_without_a_call() -> None:
    quick = limits.Limits(first_message_seconds=1.5)
    async with listening(WORLD, limits=quick) as port, raw(WORLD, port.port, AGENT) as attacker:
        await attacker.until_gone()
        assert attacker.goodbye() == CALM
        await eventually(lambda: port.refused == ["no call in time after the handshake"])


async def test_a_call_without_its_message() -> None:
    async with attacked(limits=limits.Limits(first_message_seconds=1.5)) as (_, attacker):
        stream = attacker.request(KEYS)
        assert (await attacker.status(stream))[0] == Status.DEADLINE_EXCEEDED.value


async def test_a_stream_may_be_quiet_between_messages() -> None:
    """Only what is owed or has begun has a deadline: an agent may have nothing to say for hours."""
    quick = limits.Limits(first_message_seconds=1.5, message_seconds=1.0)
    async with attacked(limits=quick) as (_, attacker):
        quiet = attacker.request(HEALTH)
        late = attacker.request(KEYS)
        assert (await attacker.status(late))[0] == Status.DEADLINE_EXCEEDED.value
        attacker.data(quiet, framed(b""))
        await attacker.until(lambda: any(isinstance(e, h2.events.DataReceived) for e in attacker.events))
        assert "grpc-status" not in attacker.headers(quiet)


@on_both_loops
async def test_a_message_of_one_byte_at_a_time() -> None:
    quick = limits.Limits(message_seconds=1.0, min_rate=1_000_000)
    async with attacked(limits=quick) as (_, attacker):
        stream = attacker.request(HEALTH)

        async def drip() -> None:
            for byte in framed(bytes(1_000)):
                attacker.data(stream, bytes([byte]))
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        code, _ = await attacker.status(stream)
        dripping.cancel()
        assert code == Status.DEADLINE_EXCEEDED.value


async def test_an_idle_registration_connection_is_closed() -> None:
    quick = limits.Limits(idle_seconds=1.0)
    async with listening(WORLD, limits=quick) as port, raw(WORLD, port.port, AGENT) as client:
        stream = client.request(KEYS)
        client.data(stream, framed(b""), end=True)
        assert (await client.status(stream))[0] == Status.OK.value
        await client.until_gone()
        assert client.goodbye() == ErrorCodes.NO_ERROR
        assert not port.refused


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x80\x2e\x01", b"\0"]
)
@on_both_loops
async def test_not_tls(sent: bytes) -> None:
    async with attacked() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(sent)
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.transport.abort()
        await eventually(lambda: port.refused == ["handshake: the peer does not speak TLS"])


@pytest.mark.parametrize("protocols", [["http/1.1"], []])
@on_both_loops
async def test_http1_over_tls(protocols: list[str]) -> None:
    context = plain_context()
    if protocols:
        context.set_alpn_protocols(protocols)
    async with attacked() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=context, server_hostname="")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            with suppress(OSError):
                assert await reader.read() == b""
        writer.transport.abort()
        await eventually(lambda: port.refused == ["handshake: the peer does not offer HTTP/2"])


async def test_http1_in_the_place_of_http2() -> None:
    async with attacked() as (port, _), raw(WORLD, port.port, AGENT, preface=False) as attacker:
        attacker.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await attacker.until_gone()
        await eventually(lambda: port.refused)
        assert port.refused[0].startswith("invalid HTTP/2")


@on_both_loops
async def test_tls_1_2() -> None:
    context = plain_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    async with attacked() as (port, _):
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port.port, ssl=context, server_hostname="")
        await eventually(lambda: port.refused)
        await eventually(lambda: port.refused)
        assert port.refused[0].startswith("handshake")


@on_both_loops
async def test_a_server_asked_for_by_a_wrong_name_does_not_answer() -> None:
    paper = WORLD.server()
    served = tls.server_context(
        certificate_pem=paper.certificate_pem, key_pem=paper.key_pem, ca_pem=WORLD.ca.pem, hosts=["localhost"]
    )
    async with listening(WORLD, context=lambda: served) as port:
        for name in ("", "localhost", "LOCALHOST"):
            _, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=plain_context(), server_hostname=name)
            writer.transport.abort()
        with pytest.raises(OSError):
            await asyncio.open_connection(
                "127.0.0.1", port.port, ssl=plain_context(), server_hostname="elsewhere.example"
            )
        await eventually(lambda: port.refused)  # type: ignore[attr-defined]
        assert "CALLBACK_FAILED" in port.refused[-1], port.refused  # type: ignore[attr-defined]


def plain_context() -> ssl.SSLContext:
    """An agent's certificate, and none of our rules."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=WORLD.ca.pem)
    tls._load_certificate(context, AGENT.certificate_pem, AGENT.key_pem)
    return context


async def test_no_session_can_be_resumed() -> None:
    async with listening(WORLD) as port, raw(WORLD, port.port, AGENT) as client:
        await client.until(lambda: client.events)
        session = client.writer.get_extra_info("ssl_object").session
        assert session is None or not session.has_ticket


async def test_connections_beyond_the_limit_are_refused_and_come_back_later() -> None:
    async with listening(WORLD, limits=limits.Limits(max_connections=2)) as port:
        async with raw(WORLD, port.port, AGENT) as first, raw(WORLD, port.port, AGENT) as second:
            await first.until(lambda: first.events)
            await second.until(lambda: second.events)
            async with WORLD.channel(port.port, AGENT) as third:
                with pytest.raises(status.UnreachableError):
                    await call.call(
                        agent_grpc.AgentServiceStub(third).SubmitPublicKeys,
                        agent_pb2.SubmitPublicKeysRequest(),
                        timeout=SECONDS,
                    )
            await eventually(lambda: port.refused == ["too many connections"])
        await eventually(lambda: not port.connections)
        async with raw(WORLD, port.port, AGENT) as again:
            await again.until(lambda: again.events)


async def test_one_address_has_its_own_limit_but_loopback_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        listening(WORLD, limits=limits.Limits(max_connections_per_address=1)) as port,
        raw(WORLD, port.port, AGENT) as first,
        raw(WORLD, port.port, AGENT) as second,
    ):
        await first.until(lambda: first.events)
        await second.until(lambda: second.events)
        monkeypatch.setattr(listener, "is_loopback", lambda host: False)
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b""
        writer.close()
        await eventually(lambda: port.refused == ["too many connections from one address"])
