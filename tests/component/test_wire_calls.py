"""Calls over real TLS: what arrives, and what a failure looks like from the other end."""

import asyncio
import logging
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from component.wire_world import (
    FILES,
    HEALTH,
    KEYS,
    SECONDS,
    Registrations,
    World,
    agents,
    framed,
    listening,
    on_both_loops,
    raw,
    wait_for_ever,
)
from nstance.v1 import agent_grpc, agent_pb2, operator_grpc, operator_pb2, registration_grpc, registration_pb2
from nstance.wire import call, limits, status
from nstance.wire.channel import ExpectedServer

WORLD = World()
AGENT = WORLD.agent()
REQUEST = agent_pb2.SubmitPublicKeysRequest()


@on_both_loops
async def test_a_call_and_a_stream_share_a_connection() -> None:
    async with listening(WORLD) as port, WORLD.channel(port.port, AGENT) as channel:
        stub = agent_grpc.AgentServiceStub(channel)
        await call.call(stub.SubmitPublicKeys, REQUEST, timeout=SECONDS)
        async with stub.SubmitHealthReport.open(timeout=SECONDS) as stream:
            for sequence in range(3):
                report = agent_pb2.HealthReport(sequence=sequence)
                await stream.send_message(agent_pb2.AgentMessage(report=report))
                answer = await stream.recv_message()
                assert answer is not None
                assert answer.sequence == sequence
            await stream.end()
            assert await stream.recv_message() is None
        assert len(port.connections) == 1


@on_both_loops
async def test_messages_larger_than_the_window_pass_both_ways() -> None:
    content = bytes(range(256)) * 8192  # 2 MiB through a window of 64 KiB

    async def send_back(stream: Any) -> None:
        request = await stream.recv_message()
        for state in request.files:
            await stream.send_message(agent_pb2.FileMessage(file=agent_pb2.File(name=state.name[:10], content=content)))

    async with listening(WORLD, agents(ReceiveFiles=send_back)) as port, WORLD.channel(port.port, AGENT) as channel:
        files = [agent_pb2.FileState(name=str(n) + "x" * 500_000) for n in range(3)]
        stub = agent_grpc.AgentServiceStub(channel)
        answers = await stub.ReceiveFiles(agent_pb2.ReceiveFilesRequest(files=files), timeout=SECONDS)
        assert [answer.file.content == content for answer in answers] == [True] * 3


@on_both_loops
async def test_an_error_of_a_service_arrives_unchanged() -> None:
    async def refuse(stream: Any) -> None:
        raise status.invalid("keys[0].name", "must not be empty — «ä»")

    async with (
        listening(WORLD, agents(SubmitPublicKeys=refuse)) as port,
        WORLD.channel(port.port, AGENT) as channel,
    ):
        with pytest.raises(GRPCError) as caught:
            await call.call(agent_grpc.AgentServiceStub(channel).SubmitPublicKeys, REQUEST, timeout=SECONDS)
        assert caught.value.status is Status.INVALID_ARGUMENT
        assert caught.value.message == "keys[0].name: must not be empty — «ä»"


@pytest.mark.parametrize(
    "bug", [KeyError("secret-thing"), TimeoutError("secret-thing"), AssertionError("secret-thing")]
)
async def test_a_bug_is_logged_once_and_tells_the_caller_nothing(
    bug: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(stream: Any) -> None:
        raise bug

    async with listening(WORLD, agents(SubmitPublicKeys=fail)) as port, WORLD.channel(port.port, AGENT) as channel:
        with pytest.raises(GRPCError) as caught, caplog.at_level(logging.INFO):
            await call.call(agent_grpc.AgentServiceStub(channel).SubmitPublicKeys, REQUEST, timeout=SECONDS)
        assert (caught.value.status, caught.value.message) == (Status.INTERNAL, "internal error")
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "secret-thing" in caplog.text  # the log is where it belongs


async def test_a_service_that_forgets_to_answer_is_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    async def forget(stream: Any) -> None:
        await stream.recv_message()

    async with listening(WORLD, agents(SubmitPublicKeys=forget)) as port, WORLD.channel(port.port, AGENT) as channel:
        with pytest.raises(GRPCError) as caught:
            await call.call(agent_grpc.AgentServiceStub(channel).SubmitPublicKeys, REQUEST, timeout=SECONDS)
        assert caught.value.status is Status.INTERNAL
        assert len(caplog.records) == 1


async def test_bytes_that_are_no_message_are_refused_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    bodies = [
        b"\xff",  # a cut tag
        b"\x0a\x05ab",  # longer than what is there
        b"\x0a\x02\x0a\x00\x0a\x04\x0a\x02\xff\xfe",  # a name that is not UTF-8
        b"\x0b" * 200,  # groups within groups
    ]
    async with listening(WORLD) as port, raw(WORLD, port.port, AGENT) as client:
        for body in bodies:
            stream = client.request(KEYS)
            client.data(stream, framed(body), end=True)
            code, message = await client.status(stream)
            assert (code, message[:33]) == (Status.INVALID_ARGUMENT.value, "expected a SubmitPublicKeysReques")
    assert not caplog.records


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(framed(b"", size=10), Status.INVALID_ARGUMENT, id="cut in the middle"),
        pytest.param(b"\0\0", Status.INVALID_ARGUMENT, id="cut in the prefix"),
        pytest.param(framed(b"x", compressed=True), Status.UNIMPLEMENTED, id="compressed"),
        pytest.param(b"", Status.INVALID_ARGUMENT, id="nothing at all"),
    ],
)
async def test_a_request_that_is_not_one_message(body: bytes, code: Status) -> None:
    async with listening(WORLD) as port, raw(WORLD, port.port, AGENT) as client:
        stream = client.request(KEYS)
        client.data(stream, body, end=True)
        assert (await client.status(stream))[0] == code.value


@pytest.mark.parametrize(
    ("path", "more", "expected"),
    [
        (KEYS, [("grpc-timeout", "soon")], {"grpc-status": "3"}),
        (KEYS, [("x-bin", "$$$=a")], {"grpc-status": "3"}),
        (KEYS, [("grpc-timeout", "9" * 5000 + "H")], {"grpc-status": "3"}),
        ("/nstance.v1.AgentService/Nothing", [], {"grpc-status": "12"}),
        ("", [], {"grpc-status": "12"}),
        (KEYS, [("content-type", "text/html")], {":status": "415"}),
        (KEYS, [(":method", "GET")], {":status": "415"}),
    ],
)
async def test_requests_that_cannot_be_taken(path: str, more: list[tuple[str, str]], expected: dict[str, str]) -> None:
    async with listening(WORLD) as port, raw(WORLD, port.port, AGENT) as client:
        stream = client.request(path, *more)
        await client.until(lambda: expected.items() <= client.headers(stream).items())
        assert await client_still_works(client)


async def client_still_works(client: Any) -> bool:
    stream = client.request(KEYS)
    client.data(stream, framed(b""), end=True)
    return bool((await client.status(stream))[0] == 0)


async def test_a_service_on_the_wrong_port_names_the_right_one() -> None:
    elsewhere = {"nstance.v1.OperatorService": "port 8993"}
    async with (
        listening(WORLD, other_services=elsewhere) as port,
        WORLD.channel(port.port, AGENT) as channel,
    ):
        stub = operator_grpc.OperatorServiceStub(channel)
        with pytest.raises(GRPCError) as caught:
            await call.call(stub.ListGroups, operator_pb2.ListGroupsRequest(), timeout=SECONDS)
        assert caught.value.status is Status.UNIMPLEMENTED
        assert "nstance.v1.OperatorService is served on port 8993" in str(caught.value.message)


async def test_a_deadline_ends_the_call_on_both_sides() -> None:
    ended = asyncio.Event()

    async def dawdle(stream: Any) -> None:
        try:
            await wait_for_ever(stream)
        finally:
            ended.set()

    async with listening(WORLD, agents(SubmitPublicKeys=dawdle)) as port, WORLD.channel(port.port, AGENT) as channel:
        with pytest.raises(status.UnreachableError, match="no answer within"):
            await call.call(agent_grpc.AgentServiceStub(channel).SubmitPublicKeys, REQUEST, timeout=0.1)
        async with asyncio.timeout(SECONDS):
            await ended.wait()


async def test_a_message_beyond_the_limit_is_refused_before_it_is_there() -> None:
    small = limits.Limits(max_message=1000)
    async with listening(WORLD, limits=small) as port, raw(WORLD, port.port, AGENT) as client:
        exact = client.request(HEALTH)
        client.data(exact, framed(bytes(1001), size=1001)[:20])  # twenty bytes of it suffice
        code, message = await client.status(exact)
        assert code == Status.RESOURCE_EXHAUSTED.value
        assert "at most 1000 bytes, found one of 1001" in message
        fits = client.request(KEYS)
        client.data(fits, framed(b"\x0a\x00" * 500), end=True)
        assert (await client.status(fits))[0] == Status.OK.value


async def test_a_client_refuses_an_answer_beyond_its_limit() -> None:
    async def flood(stream: Any) -> None:
        await stream.send_message(agent_pb2.KeyRequest(names=["x" * 2000]))

    async with (
        listening(WORLD, agents(ReceiveKeyRequests=flood)) as port,
        WORLD.channel(port.port, AGENT, limits=limits.Limits(max_message=1000)) as channel,
    ):
        with pytest.raises(GRPCError) as caught:
            await agent_grpc.AgentServiceStub(channel).ReceiveKeyRequests(agent_pb2.ReceiveKeyRequestsRequest())
        assert caught.value.status is Status.RESOURCE_EXHAUSTED


async def test_the_registration_port_asks_for_no_certificate() -> None:
    context = WORLD.server_context(clients=False)
    async with (
        listening(WORLD, Registrations(), context=lambda: context, role=None, limits=limits.REGISTRATION) as port,
        WORLD.channel(port.port, expect=ExpectedServer(WORLD.cluster, None)) as channel,
    ):
        stub = registration_grpc.RegistrationServiceStub(channel)
        request = registration_pb2.RegisterAgentRequest(nonce="once")
        answer = await call.call(stub.RegisterAgent, request, timeout=SECONDS)
        assert answer.certificate_pem == "once"
        assert port.connections[0].identity is None
        big = registration_pb2.RegisterAgentRequest(nonce="x" * limits.REGISTRATION.max_message)
        with pytest.raises(GRPCError) as caught:
            await call.call(stub.RegisterAgent, big, timeout=SECONDS)
        assert caught.value.status is Status.RESOURCE_EXHAUSTED


async def test_a_cancelled_stream_ends_its_handler() -> None:
    ended = asyncio.Event()

    async def watch(stream: Any) -> None:
        try:
            await wait_for_ever(stream)
        finally:
            ended.set()

    async with listening(WORLD, agents(ReceiveFiles=watch)) as port, raw(WORLD, port.port, AGENT) as client:
        stream = client.request(FILES)
        client.data(stream, framed(b""), end=True)
        await client.until(lambda: port.connections)
        client.h2.reset_stream(stream)
        client.send()
        async with asyncio.timeout(SECONDS):
            await ended.wait()
        assert await client_still_works(client)
