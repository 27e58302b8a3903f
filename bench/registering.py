"""Row 15: registrations per second, each over its own connection: proof, record, certificate, cache."""

import asyncio
import random
import time
from collections.abc import AsyncIterator

from bench import fleet
from bench.fleet_server import CLUSTER, agent_key
from bench.rows import Row, spread
from nstance.config.addresses import Service
from nstance.pki import keys, proof
from nstance.v1 import registration_grpc, registration_pb2
from nstance.wire import tls
from nstance.wire.call import call

AGENTS = 1000
CONCURRENT = 48


async def run() -> AsyncIterator[Row]:
    async with fleet.serving(fleet.Setup(groups=20, size=AGENTS // 20, settled=False)) as server:
        async with asyncio.timeout(60):
            await server.count_created(AGENTS)
        booted = (await server.ask("nonces"))["booted"]
        random.shuffle(booted)
        requests = [registration(server.settings["seed"], id, nonce) for id, nonce in booted]
        context = tls.client_context(ca_pem=server.ca.pem)
        remaining, took = iter(requests), []

        async def register() -> None:
            for request in remaining:
                began = time.monotonic()
                channel = server.channel(context, Service.REGISTRATION)
                try:
                    await call(registration_grpc.RegistrationServiceStub(channel).RegisterAgent, request, timeout=30)
                finally:
                    channel.close()
                took.append(1000 * (time.monotonic() - began))

        cpu = (await server.wait_idle())["cpu"]
        began = time.monotonic()
        await asyncio.gather(*(register() for _ in range(CONCURRENT)))
        seconds = time.monotonic() - began
        cpu = (await server.ask("usage"))["cpu"] - cpu
        yield Row(
            number="15",
            what="registrations, each with a TLS connection of its own",
            value=len(took) / seconds,
            unit="per s",
            goal=300.0,
            at_least=True,
            detail=f"{len(took) / cpu:.0f} per second of the server's processor time; {spread(took, 'ms', 0)}",
        )


def registration(seed: str, id: str, nonce: str) -> registration_pb2.RegisterAgentRequest:
    key = agent_key(seed, id)
    return registration_pb2.RegisterAgentRequest(
        nonce=nonce,
        public_key_pem=keys.public_to_pem(keys.public_bytes(key)),
        proof=proof.prove_registration(key, cluster=CLUSTER, nonce=nonce),
        hostname=id,
    )
