"""Hostile clients: slow ones, floods, forged and replayed nonces, an agent that pretends to be an operator.

They connect to the leader's own ports, without the proxies. They must never receive a certificate or an INTERNAL status, or
keep a connection for as long as they like.
"""

import asyncio
import base64
import contextlib
import json
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import hpack
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError
from hyperframe.frame import HeadersFrame, RstStreamFrame, SettingsFrame

from chaos.world import CLUSTER, SHARD, World, accepts
from nstance.clock import SystemClock, SystemRng
from nstance.config.addresses import Service
from nstance.pki import keys, proof
from nstance.v1 import operator_grpc, operator_pb2, registration_grpc, registration_pb2
from nstance.wire import tls
from nstance.wire.call import call
from nstance.wire.channel import Channel, ExpectedServer
from nstance.wire.status import UnreachableError

RNG, CLOCK = SystemRng(), SystemClock()
SLOW_CLIENTS = 200
DISCONNECT_SECONDS = 25.0
FLOODS_AT_ONCE = 6
FLOOD = 5_000  # frames
FORGERIES = 40
UNANSWERED = "no answer"
WRONG_STATUSES = frozenset({"OK", "INTERNAL", "UNKNOWN", "UNIMPLEMENTED"})
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "x"),
    (":path", "/nstance.v1.AgentService/SubmitPublicKeys"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


@dataclass
class Outcome:
    """How the server answered."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


Attack = Callable[[World], Awaitable[Outcome]]


async def _wait_for_port(world: World, service: Service) -> None:
    """Wait a moment for an open port of the leader."""
    with contextlib.suppress(TimeoutError):
        await world.until(lambda: (place := world.address(service)) and accepts(*place), 15.0, "an open port")


def _identify_leader(world: World) -> tuple[str, int] | None:
    """The leader and how often it was stopped: one that is killed or stopped meanwhile disconnects no client."""
    child = world.leader()
    return (child.life.name, len(child.life.stops)) if child is not None and child.answers else None


# ---- slow clients


async def slowloris(world: World) -> Outcome:
    """Slow clients occupy connections."""
    outcome = Outcome()
    places = [world.address(service) for service in Service]
    if None in places:
        return outcome
    context, leader = tls.client_context(ca_pem=world.ca()), _identify_leader(world)
    kinds = (_mute, _drip, _mute_after_tls, _half_a_request)
    tasks = []
    for number in range(SLOW_CLIENTS):
        place = places[number % len(places)]
        assert place is not None
        tasks.append(asyncio.create_task(kinds[number // len(places) % len(kinds)](place, context)))
    _, connected = await asyncio.wait(tasks, timeout=DISCONNECT_SECONDS)
    outcome.counts["slow clients disconnected"] += len(tasks) - len(connected)
    if connected and _identify_leader(world) == leader:
        outcome.problems.append(
            f"{len(connected)} of {SLOW_CLIENTS} slow clients were still connected after {DISCONNECT_SECONDS:.0f} s"
        )
    for task in connected:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return outcome


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drops: bytes = b"") -> None:
    """Send a byte a second until the server closes the connection."""

    async def drip() -> None:
        for byte in drops:
            writer.write(bytes([byte]))
            await asyncio.sleep(1.0)

    dripping = asyncio.create_task(drip())
    try:
        with contextlib.suppress(OSError):
            while await reader.read(4096):
                pass
    finally:
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        writer.transport.abort()


async def _mute(place: tuple[str, int], context: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):
        await _until_closed(*await asyncio.open_connection(*place))


async def _drip(place: tuple[str, int], context: ssl.SSLContext) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
    with contextlib.suppress(OSError):
        await _until_closed(*await asyncio.open_connection(*place), hello)


async def _mute_after_tls(place: tuple[str, int], context: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):
        await _until_closed(*await asyncio.open_connection(*place, ssl=context, server_hostname=""))


async def _half_a_request(place: tuple[str, int], context: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):
        await _until_closed(*await asyncio.open_connection(*place), b"GET /metrics HTTP/1.1\r\nHost: " + b"x" * 500)


# ---- floods


async def stream_flood(world: World) -> Outcome:
    """Floods with an agent's own certificate."""
    outcome = Outcome()
    place, context = world.address(Service.AGENT), _stolen_identity(world)
    if place is None or context is None:
        return outcome
    leader = _identify_leader(world)
    block = hpack.Encoder().encode(HEADERS)
    streams = range(1, 2 * FLOOD, 2)
    opened = b"".join(HeadersFrame(n, data=block, flags=["END_HEADERS"]).serialize() for n in streams)
    reset = b"".join(
        HeadersFrame(n, data=block, flags=["END_HEADERS"]).serialize() + RstStreamFrame(n, 8).serialize()
        for n in streams
    )
    pings = (struct.pack(">HBBBL", 0, 8, 6, 0, 0) + b"pingping") * FLOOD
    settings = SettingsFrame(0, settings={3: 9}).serialize() * FLOOD
    garbage = RNG.bytes(100_000)
    floods = [opened, reset, pings, settings, garbage] * FLOODS_AT_ONCE
    ended = await asyncio.gather(*(_flood(place, context, frames) for frames in floods))
    outcome.counts["floods ended by the server"] += ended.count(True)
    if False in ended and _identify_leader(world) == leader:
        outcome.problems.append(f"{ended.count(False)} of {len(floods)} floods were never ended")
    return outcome


async def _flood(place: tuple[str, int], context: ssl.SSLContext, frames: bytes) -> bool | None:
    """Whether the server ended it; None if there was no connection."""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(*place, ssl=context, server_hostname=""), DISCONNECT_SECONDS
        )
    except (OSError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(DISCONNECT_SECONDS):
            with contextlib.suppress(OSError):
                writer.write(PREFACE + SettingsFrame(0).serialize() + frames)
                while await reader.read(65536):
                    pass
            return True
    except TimeoutError:
        return False
    finally:
        writer.transport.abort()


def _stolen_identity(world: World) -> ssl.SSLContext | None:
    for id in world.vms.running():
        folder = world.vms.root / id / "identity"
        with contextlib.suppress(OSError, ValueError):
            return tls.client_context(
                ca_pem=world.ca(),
                certificate_pem=(folder / "identity.crt").read_text(),
                key_pem=(folder / "identity.key").read_bytes(),
            )
    return None


# ---- nonces


def _stolen_nonces(world: World) -> dict[str, str]:
    """Nonces of agents that have registered."""
    found = {}
    for id in world.vms.running():
        with contextlib.suppress(OSError):
            if (world.vms.root / id / "identity" / "identity.crt").exists():
                found[id] = (world.vms.root / id / "stolen.jwt").read_text().strip()
    return found


async def forged_nonces(world: World) -> Outcome:
    """Registrations with forged nonces."""
    outcome = Outcome()
    real = list(_stolen_nonces(world).values())
    if not real:
        return outcome
    tokens = [_forged(real[n % len(real)], n) for n in range(FORGERIES)]
    await _wait_for_port(world, Service.REGISTRATION)
    for token in tokens:
        outcome.counts[await _register(world, token, outcome)] += 1
    return outcome


def _forged(token: str, number: int) -> str:
    header, body, signature = token.split(".")
    claims = json.loads(_decode(body))
    key = keys.generate(RNG)
    match number % 8:
        case 0:
            return f"{_encode(json.dumps({'alg': 'none', 'typ': 'JWT'}).encode())}.{body}."
        case 1:
            return f"{header}.{body}.{_encode(key.sign(f'{header}.{body}'.encode()))}"
        case 2:
            return f"{header}.{_encode(json.dumps({**claims, 'exp': 2**39}).encode())}.{signature}"
        case 3:
            return f"{header}.{_encode(json.dumps({**claims, 'tenant': 'other'}).encode())}.{signature}"
        case 4:
            return f"{token}="
        case 5:
            return f"{header}.{body}.{_encode(bytes(64))}"
        case 6:
            return "x" * 60_000
        case _:
            return f"{header}.{_encode(b'[' * 1000)}.{signature}"


async def replayed_nonces(world: World) -> Outcome:
    """Used nonces are replayed with other keys."""
    outcome = Outcome()
    await _wait_for_port(world, Service.REGISTRATION)
    for token in list(_stolen_nonces(world).values())[:20]:
        outcome.counts[await _register(world, token, outcome)] += 1
    return outcome


async def _register(world: World, token: str, outcome: Outcome) -> str:
    place = world.address(Service.REGISTRATION)
    if place is None:
        return UNANSWERED
    key = keys.generate(RNG)
    channel = Channel(
        f"{place[0]}:{place[1]}",
        context=tls.client_context(ca_pem=world.ca()),
        expect=ExpectedServer(CLUSTER, SHARD),
        clock=CLOCK,
    )
    request = registration_pb2.RegisterAgentRequest(
        nonce=token,
        public_key_pem=keys.public_to_pem(keys.public_bytes(key)),
        proof=proof.prove_registration(key, cluster=CLUSTER, nonce=token),
    )
    try:
        stub = registration_grpc.RegistrationServiceStub(channel)
        await call(stub.RegisterAgent, request, timeout=5.0)
        status = "OK"
    except GRPCError as error:
        status = error.status.name
    except UnreachableError:
        status = UNANSWERED
    finally:
        channel.close()
    if status in WRONG_STATUSES:
        outcome.problems.append(f"I7: a forged or replayed nonce was answered with {status}")
    return status


# ---- others


async def impostor(world: World) -> Outcome:
    """An agent pretends to be an operator."""
    outcome = Outcome()
    place, context = world.address(Service.OPERATOR), _stolen_identity(world)
    if place is None or context is None:
        return outcome
    await _wait_for_port(world, Service.OPERATOR)
    for _ in range(10):
        channel = Channel(f"{place[0]}:{place[1]}", context=context, expect=ExpectedServer(CLUSTER, SHARD), clock=CLOCK)
        try:
            stub = operator_grpc.OperatorServiceStub(channel)
            await call(stub.ListGroups, operator_pb2.ListGroupsRequest(), timeout=5.0)
            status = "OK"
        except GRPCError as error:
            status = error.status.name
        except (UnreachableError, StreamTerminatedError, ProtocolError):
            status = UNANSWERED
        finally:
            channel.close()
        outcome.counts[status] += 1
        if status in WRONG_STATUSES:
            outcome.problems.append(f"I8: an agent that pretends to be an operator was answered with {status}")
    return outcome


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


ATTACKS: tuple[Attack, ...] = (slowloris, stream_flood, forged_nonces, replayed_nonces, impostor)
