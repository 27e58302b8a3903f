"""Servers that listen for their peers over real TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from component.wire_world import CLUSTER, SECONDS, SHARD, Paper, World
from nstance.objects import lease as leases
from nstance.server.election import peer_http, peers
from nstance.wire.http_listener import LIMITS, Limits
from support.eventually import eventually


def server_side(world: World, paper: Paper) -> ssl.SSLContext:
    return peer_http.server_context(certificate_pem=paper.certificate_pem, key_pem=paper.key_pem, ca_pem=world.ca.pem)


def client_side(world: World, paper: Paper) -> ssl.SSLContext:
    return peer_http.client_context(certificate_pem=paper.certificate_pem, key_pem=paper.key_pem, ca_pem=world.ca.pem)


def fingerprint(paper: Paper) -> str:
    return peer_http.key_fingerprint(ssl.PEM_cert_to_DER_cert(paper.certificate_pem))


class Side:
    """A listening server that keeps the links it was given."""

    def __init__(self, world: World, paper: Paper, limits: Limits = LIMITS) -> None:
        self.paper = paper
        self.links: list[peers.Link] = []
        self.lease: leases.Lease | None = None
        self.context: ssl.SSLContext | None = server_side(world, paper)
        self.released = asyncio.Event()
        self.server = peer_http.PeerServer(
            accept=self.accept,
            held=lambda: self.lease,
            context=lambda: self.context,
            cluster=CLUSTER,
            shard=SHARD,
            limits=limits,
        )

    async def accept(self, link: peers.Link) -> None:
        self.links.append(link)
        await self.released.wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.listener.port}"


@asynccontextmanager
async def listening(world: World, paper: Paper | None = None, limits: Limits = LIMITS) -> AsyncIterator[Side]:
    side = Side(world, paper or world.server(), limits)
    await side.server.listener.start("127.0.0.1", 0)
    try:
        yield side
    finally:
        await side.server.listener.close()


def dialer(world: World, paper: Paper, shard: str = SHARD) -> peer_http.HttpDialer:
    context = client_side(world, paper)
    return peer_http.HttpDialer(lambda: context, cluster=CLUSTER, shard=shard)


@asynccontextmanager
async def linked(world: World, limits: Limits = LIMITS) -> AsyncIterator[tuple[Side, peers.Link, peers.Link]]:
    """(the listening side, its end of the link, the caller's end)"""
    async with listening(world, limits=limits) as side:
        here = await dialer(world, world.server(id="server-2")).dial((side.address,), fingerprint(side.paper))
        try:
            await eventually(lambda: side.links, "the link")
            yield side, side.links[0], here
        finally:
            here.close()


async def received(link: peers.Link) -> peers.Message:
    async with asyncio.timeout(SECONDS):
        return await link.receive()


async def closed(link: peers.Link) -> None:
    with pytest.raises(peers.LinkClosedError):
        await received(link)
