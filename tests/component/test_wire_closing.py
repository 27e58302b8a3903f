"""Ends: a listener that closes, a channel that closes, a peer that falls silent."""

import asyncio
import contextlib
from typing import Any

import pytest
from grpclib.exceptions import StreamTerminatedError

from component.wire_world import (
    CLOCK,
    KEYS,
    SECONDS,
    SHARD,
    Pipe,
    World,
    agents,
    framed,
    listening,
    on_both_loops,
    raw,
    table,
    wait_for_ever,
)
from nstance import clock
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import call, channel, limits, listener, status
from support.eventually import eventually

WORLD = World()
AGENT = WORLD.agent()
REQUEST = agent_pb2.SubmitPublicKeysRequest()
IMPATIENT = limits.Limits(ping_after=0.2, pong_within=1.0)
PATIENT = limits.Limits(ping_after=60, pong_within=60)


async def ask(through: channel.Channel, timeout: float = SECONDS) -> None:
    await call.call(agent_grpc.AgentServiceStub(through).SubmitPublicKeys, REQUEST, timeout=timeout)


@on_both_loops
async def test_a_deposed_leader_answers_nothing_on_old_connections() -> None:
    """A call in progress, a stream, an idle connection: none of them hears a word after close."""
    go, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(stream: Any) -> None:
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        await stream.send_message(agent_pb2.SubmitPublicKeysResponse())

    service = agents(SubmitPublicKeys=slow, ReceiveFiles=wait_for_ever)
    async with (
        listening(WORLD, service) as port,
        raw(WORLD, port.port, AGENT) as busy,
        raw(WORLD, port.port, AGENT) as idle,
    ):
        stream = busy.request(KEYS)
        busy.data(stream, framed(b""), end=True)
        await idle.receive()
        await eventually(lambda: service.entered and len(port.connections) == 2)
        go.set()  # the answer is due in the very same moment
        await port.close()
        late = idle.request(KEYS)
        idle.data(late, framed(b""), end=True)
        await busy.until_gone()
        await idle.until_gone()
        assert cancelled.is_set()
        assert not busy.headers(stream)
        assert not idle.headers(late)
        assert len(service.entered) == 1
        assert not port.connections


@on_both_loops
async def test_a_port_can_be_opened_again_at_once() -> None:
    async with listening(WORLD) as port, WORLD.channel(port.port, AGENT) as through:
        await ask(through)
        number = port.port
        await port.close()
        await eventually(lambda: not through.connected)
        context = WORLD.server_context()
        again = listener.Listener(table(agents()), context=lambda: context, clock=CLOCK)
        await again.start("127.0.0.1", number)
        await ask(through)  # the channel finds its way back by itself
        await again.close()


async def test_a_taken_port_is_an_error_that_leaves_nothing_behind() -> None:
    async with listening(WORLD) as port:
        context = WORLD.server_context()
        second = listener.Listener(table(agents()), context=lambda: context, clock=CLOCK)
        with pytest.raises(OSError, match="already in use"):
            await second.start("127.0.0.1", port.port)
        await second.close()


async def test_a_name_with_two_addresses_is_served_on_both() -> None:
    context = WORLD.server_context()
    made = listener.Listener(table(agents()), context=lambda: context, clock=CLOCK)
    await made.start("", 0)
    try:
        for host in ("127.0.0.1", "[::1]"):
            async with channel.Channel(
                f"{host}:{made.port}",
                context=WORLD.client_context(AGENT),
                expect=channel.ExpectedServer(None, None),
                clock=CLOCK,
            ) as through:
                await ask(through)
        assert {connection.address for connection in made.connections} <= {"127.0.0.1", "::1"}
    finally:
        await made.close()


@on_both_loops
async def test_closing_a_channel_fails_its_calls_and_makes_no_new_ones() -> None:
    async with listening(WORLD, agents(SubmitPublicKeys=wait_for_ever)) as port:
        through = WORLD.channel(port.port, AGENT)
        waiting = asyncio.create_task(ask(through))
        await eventually(lambda: port.connections and through.connected)
        through.close()
        with pytest.raises(status.UnreachableError):
            await waiting
        with pytest.raises(status.UnreachableError, match="closed"):
            await ask(through)
        assert not through.connected
        await eventually(lambda: not port.connections)


@on_both_loops
async def test_a_channel_whose_server_is_gone_can_be_closed() -> None:
    """In Python 3.11.2, asyncio's TLS transport cannot be aborted then; agents ended with every change of leader."""
    async with listening(WORLD) as port, WORLD.channel(port.port, AGENT) as through:
        await ask(through)
        await port.close()
        await eventually(lambda: not through.connected)
        through.close()
        with pytest.raises(status.UnreachableError):
            await ask(through)


@on_both_loops
async def test_a_call_that_waits_for_a_free_stream_fails_with_the_connection() -> None:
    service = agents(SubmitPublicKeys=wait_for_ever)
    async with listening(WORLD, service, limits=limits.Limits(max_streams=1)) as port:
        through = WORLD.channel(port.port, AGENT)
        stub = agent_grpc.AgentServiceStub(through)
        calls = [asyncio.create_task(stub.SubmitPublicKeys(REQUEST)) for _ in range(3)]  # without deadlines
        await eventually(lambda: service.entered)
        port.connections[0].abort()
        done, waiting = await asyncio.wait(calls, timeout=SECONDS)
        assert not waiting
        assert {type(call.exception()) for call in done} == {StreamTerminatedError}
        through.close()


@on_both_loops
async def test_a_silent_server_is_noticed_by_the_client() -> None:
    service = agents(ReceiveFiles=wait_for_ever)
    async with (
        listening(WORLD, service, limits=PATIENT) as port,
        Pipe(port.port) as pipe,
        WORLD.channel(pipe.port, AGENT, limits=IMPATIENT) as through,
    ):
        await ask(through)
        stream = asyncio.create_task(agent_grpc.AgentServiceStub(through).ReceiveFiles(agent_pb2.ReceiveFilesRequest()))
        await eventually(lambda: len(service.entered) == 2)
        pipe.freeze()
        done, _ = await asyncio.wait([stream], timeout=SECONDS)
        assert done, "the stream on a dead connection went on"
        assert "unresponsive" in str(stream.exception())
        assert not through.connected


@on_both_loops
async def test_a_silent_client_is_noticed_by_the_server() -> None:
    ended = asyncio.Event()

    async def watch(stream: Any) -> None:
        try:
            await wait_for_ever(stream)
        finally:
            ended.set()

    service = agents(ReceiveFiles=watch)
    async with (
        listening(WORLD, service, limits=IMPATIENT) as port,
        Pipe(port.port) as pipe,
        WORLD.channel(pipe.port, AGENT, limits=PATIENT) as through,
    ):
        stream = asyncio.create_task(agent_grpc.AgentServiceStub(through).ReceiveFiles(agent_pb2.ReceiveFilesRequest()))
        await eventually(lambda: service.entered)
        connection = port.connections[0]
        pipe.freeze()
        async with asyncio.timeout(SECONDS):
            await connection.closed.wait()
            await ended.wait()
        assert port.refused == ["the peer is unresponsive"]
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


@on_both_loops
async def test_pings_keep_a_quiet_connection_and_move_last_seen() -> None:
    async with (
        listening(WORLD, limits=IMPATIENT) as port,
        WORLD.channel(port.port, AGENT, limits=PATIENT) as through,
    ):
        await ask(through)
        connection = port.connections[0]
        for _ in range(4):  # each needs a ping and its answer, as nothing else is sent
            before = connection.last_seen
            await eventually(lambda before=before: connection.last_seen > before)
        assert through.connected
        assert not connection.closed.is_set()
        assert through.last_seen is not None
        assert through.last_seen <= CLOCK.monotonic()


class Stopped(clock.SystemClock):
    """A machine that was suspended: time passes at once for everybody who asks."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def test_a_process_that_was_frozen_does_not_blame_its_peers() -> None:
    time = Stopped()
    async with (
        listening(WORLD, limits=IMPATIENT, clock=time) as port,
        WORLD.channel(port.port, AGENT, limits=PATIENT) as through,
    ):
        await ask(through)
        connection = port.connections[0]
        for _ in range(3):
            time.ahead += 100.0
            frozen = connection.last_seen
            await eventually(lambda frozen=frozen: connection.last_seen > frozen)
        assert not connection.closed.is_set()
        assert through.connected


@on_both_loops
async def test_addresses_are_tried_in_turn_and_the_good_one_remembered() -> None:
    async with listening(WORLD) as good, listening(WORLD) as closed:
        dead = closed.port
        await closed.close()
        through = channel.Channel(
            f"127.0.0.1:{dead}, 127.0.0.1:{good.port}",
            context=WORLD.client_context(AGENT),
            expect=channel.ExpectedServer(WORLD.cluster, SHARD),
            clock=CLOCK,
        )
        dialled = record_dials(through)
        await ask(through)
        good.connections[0].abort()
        await eventually(lambda: not through.connected)
        await ask(through)
        assert dialled == [dead, good.port, good.port]
        through.close()


def record_dials(through: channel.Channel) -> list[int]:
    dialled: list[int] = []
    connect = through._connect

    async def recorded(host: str, port: int) -> Any:
        dialled.append(port)
        return await connect(host, port)

    through._connect = recorded  # type: ignore[method-assign]
    return dialled


async def test_when_nobody_answers_the_error_names_them_all() -> None:
    async with listening(WORLD) as first, listening(WORLD) as second:
        ports = [first.port, second.port]
        await first.close()
        await second.close()
        through = channel.Channel(
            [f"127.0.0.1:{port}" for port in ports],
            context=WORLD.client_context(AGENT),
            expect=channel.ExpectedServer(None, None),
            clock=CLOCK,
        )
        with pytest.raises(status.UnreachableError) as caught:
            await ask(through)
        assert all(f"127.0.0.1:{port}" in str(caught.value) for port in ports)


async def test_a_host_that_accepts_and_says_nothing_is_given_up() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        quick = limits.Limits(handshake_seconds=0.1)
        through = WORLD.channel(server.sockets[0].getsockname()[1], AGENT, limits=quick)
        with pytest.raises(status.UnreachableError):
            await ask(through)


@on_both_loops
async def test_close_during_handshakes_leaves_no_task_and_no_socket() -> None:
    before = asyncio.all_tasks()
    async with listening(WORLD) as port:
        opened = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(3)]
        opened[0][1].write(b"\x16")
        opened[1][1].write(b"\x16\x03\x01\x02\x00\x01")
        await eventually(lambda: len(asyncio.all_tasks()) >= len(before) + 4)
        await port.close()
        for reader, writer in opened:
            async with asyncio.timeout(SECONDS):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.transport.abort()
    await eventually(lambda: asyncio.all_tasks() <= before)
