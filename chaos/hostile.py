"""Clients that mean harm: slow ones, floods, forged and replayed nonces, an agent that plays operator.

They talk to the leader's own ports, without the proxies. What they must never get is a certificate, an INTERNAL status, or
a connection for as long as they like.
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
from nstance.wire.channel import Channel
from nstance.wire.status import UnreachableError

CHANCE, CLOCK = SystemRng(), SystemClock()
SLOW_CLIENTS = 200
SHOWN_THE_DOOR_WITHIN = 25.0
FLOODS_AT_ONCE = 6
FLOOD = 5_000  # frames
FORGERIES = 40
UNANSWERED = "no answer"
WRONG = frozenset({"OK", "INTERNAL", "UNKNOWN", "UNIMPLEMENTED"})
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
class Said:
    """What came back."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


Attack = Callable[[World], Awaitable[Said]]


async def _served(world: World, service: Service) -> None:
    """Wait a moment for somebody to attack."""
    with contextlib.suppress(TimeoutError):
        await world.until(lambda: (place := world.address(service)) and accepts(*place), 15.0, "an open port")


def _at_home(world: World) -> tuple[str, int] | None:
    """Who leads, and how often it was stopped: a server that is killed or stopped in between shows nobody the door."""
    leader = world.leader()
    return (leader.life.name, len(leader.life.stops)) if leader is not None and leader.answers else None


# ---- slow clients


async def slowloris(world: World) -> Said:
    """Slow clients take their time (B24)."""
    said = Said()
    places = [world.address(service) for service in Service]
    if None in places:
        return said
    context, home = tls.client_context(ca_pem=world.ca()), _at_home(world)
    kinds = (_mute, _drip, _mute_after_tls, _half_a_request)
    tasks = []
    for number in range(SLOW_CLIENTS):
        place = places[number % len(places)]
        assert place is not None
        tasks.append(asyncio.create_task(kinds[number // len(places) % len(kinds)](place, context)))
    _, patient = await asyncio.wait(tasks, timeout=SHOWN_THE_DOOR_WITHIN)
    said.counts["slow clients shown the door"] += len(tasks) - len(patient)
    if patient and _at_home(world) == home:
        said.problems.append(f"B24: {len(patient)} of {SLOW_CLIENTS} slow clients were still served after a while")
    for task in patient:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return said


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drops: bytes = b"") -> None:
    """Say a byte a second, until nobody listens any more."""

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


async def stream_flood(world: World) -> Said:
    """An agent's own certificate is used for floods (B23)."""
    said = Said()
    place, context = world.address(Service.AGENT), _stolen_identity(world)
    if place is None or context is None:
        return said
    home = _at_home(world)
    block = hpack.Encoder().encode(HEADERS)
    odd = range(1, 2 * FLOOD, 2)
    opened = b"".join(HeadersFrame(n, data=block, flags=["END_HEADERS"]).serialize() for n in odd)
    reset = b"".join(
        HeadersFrame(n, data=block, flags=["END_HEADERS"]).serialize() + RstStreamFrame(n, 8).serialize() for n in odd
    )
    pings = (struct.pack(">HBBBL", 0, 8, 6, 0, 0) + b"pingping") * FLOOD
    settings = SettingsFrame(0, settings={3: 9}).serialize() * FLOOD
    garbage = CHANCE.bytes(100_000)
    floods = [opened, reset, pings, settings, garbage] * FLOODS_AT_ONCE
    ended = await asyncio.gather(*(_flood(place, context, frames) for frames in floods))
    said.counts["floods ended by the server"] += ended.count(True)
    if False in ended and _at_home(world) == home:
        said.problems.append(f"B23: {ended.count(False)} of {len(floods)} floods were never ended")
    return said


async def _flood(place: tuple[str, int], context: ssl.SSLContext, frames: bytes) -> bool | None:
    """Whether the server ended it; None if there was no connection."""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(*place, ssl=context, server_hostname=""), SHOWN_THE_DOOR_WITHIN
        )
    except (OSError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(SHOWN_THE_DOOR_WITHIN):
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
    """Of agents that have used theirs."""
    found = {}
    for id in world.vms.running():
        with contextlib.suppress(OSError):
            if (world.vms.root / id / "identity" / "identity.crt").exists():
                found[id] = (world.vms.root / id / "stolen.jwt").read_text().strip()
    return found


async def forged_nonces(world: World) -> Said:
    """Somebody registers with forged nonces (B1, B2, B4, B6, B8)."""
    said = Said()
    real = list(_stolen_nonces(world).values())
    if not real:
        return said
    tokens = [_forged(real[n % len(real)], n) for n in range(FORGERIES)]
    await _served(world, Service.REGISTRATION)
    for token in tokens:
        said.counts[await _register(world, token, said)] += 1
    return said


def _forged(token: str, number: int) -> str:
    header, body, signature = token.split(".")
    claims = json.loads(_decode(body))
    key = keys.generate(CHANCE)
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


async def replayed_nonces(world: World) -> Said:
    """Nonces that were used are used again, with other keys (B7)."""
    said = Said()
    await _served(world, Service.REGISTRATION)
    for token in list(_stolen_nonces(world).values())[:20]:
        said.counts[await _register(world, token, said)] += 1
    return said


async def _register(world: World, token: str, said: Said) -> str:
    place = world.address(Service.REGISTRATION)
    if place is None:
        return UNANSWERED
    key = keys.generate(CHANCE)
    channel = Channel(
        f"{place[0]}:{place[1]}",
        context=tls.client_context(ca_pem=world.ca()),
        expect_cluster=CLUSTER,
        expect_shard=SHARD,
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
    if status in WRONG:
        said.problems.append(f"I7: a forged or replayed nonce was answered with {status}")
    return status


# ---- others


async def impostor(world: World) -> Said:
    """An agent plays operator (B14)."""
    said = Said()
    place, context = world.address(Service.OPERATOR), _stolen_identity(world)
    if place is None or context is None:
        return said
    await _served(world, Service.OPERATOR)
    for _ in range(10):
        channel = Channel(
            f"{place[0]}:{place[1]}", context=context, expect_cluster=CLUSTER, expect_shard=SHARD, clock=CLOCK
        )
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
        said.counts[status] += 1
        if status in WRONG:
            said.problems.append(f"I8: an agent that plays operator was answered with {status}")
    return said


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


ATTACKS: tuple[Attack, ...] = (slowloris, stream_flood, forged_nonces, replayed_nonces, impostor)
