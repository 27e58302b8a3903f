"""Who may talk to whom."""

import ssl
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from component.wire_world import (
    AGENT_ID,
    CLOCK,
    SECONDS,
    SHARD,
    Paper,
    Registrations,
    World,
    agents,
    listening,
    on_both_loops,
)
from nstance.pki import ca, names
from nstance.v1 import agent_grpc, agent_pb2
from nstance.wire import call, channel, peer, status, tls
from support.eventually import eventually

WORLD = World()
OTHER = World()  # the same name, another CA
REQUEST = agent_pb2.SubmitPublicKeysRequest()


async def ask(through: channel.Channel) -> None:
    await call.call(agent_grpc.AgentServiceStub(through).SubmitPublicKeys, REQUEST, timeout=SECONDS)


@on_both_loops
async def test_a_service_sees_who_calls() -> None:
    seen: list[peer.Connection] = []

    async def look(stream: Any) -> None:
        await stream.recv_message()
        seen.append(peer.connection_of(stream))
        await stream.send_message(agent_pb2.SubmitPublicKeysResponse())

    async with (
        listening(WORLD, agents(SubmitPublicKeys=look)) as port,
        WORLD.channel(port.port, WORLD.agent(tenant="acme")) as through,
    ):
        await ask(through)
        await ask(through)
        assert seen[0] is seen[1] is port.connections[0]
        assert seen[0].identity == names.Agent(
            names.ClusterId(WORLD.cluster), names.TenantId("acme"), names.InstanceId(AGENT_ID)
        )
        assert seen[0].address == "127.0.0.1"
        assert 0 <= CLOCK.monotonic() - seen[0].last_seen < SECONDS


@pytest.mark.parametrize(
    ("paper", "code", "words"),
    [
        pytest.param(WORLD.operator(), Status.PERMISSION_DENIED, "role agent, found operator", id="b14 operator"),
        pytest.param(WORLD.server(), Status.PERMISSION_DENIED, "role agent, found server", id="b14 server"),
        pytest.param(WORLD.workload(ca.Usage.CLIENT), Status.UNAUTHENTICATED, "", id="b13 workload"),
    ],
)
async def test_a_certificate_of_our_ca_that_does_not_fit_the_port(paper: Paper, code: Status, words: str) -> None:
    async with listening(WORLD) as port, WORLD.channel(port.port, paper) as through:
        with pytest.raises(GRPCError) as caught:
            await ask(through)
        assert caught.value.status is code
        assert words in str(caught.value.message)


async def test_rejected_peers_are_reported_once_per_connection() -> None:
    last_seen: list[tuple[object, str]] = []

    def on_rejected(connection: peer.Connection, reason: str) -> None:
        last_seen.append((connection.identity, reason))

    async with listening(WORLD, on_rejected_peer=on_rejected) as port:
        for _ in range(2):
            async with WORLD.channel(port.port, WORLD.operator()) as through:
                for _ in range(3):
                    with pytest.raises(GRPCError):
                        await ask(through)
        async with WORLD.channel(port.port, WORLD.agent()) as through:
            await ask(through)
    identity, reason = last_seen[0]
    assert isinstance(identity, names.Operator)
    assert "role agent, found operator" in reason
    assert len(last_seen) == 2


async def test_a_certificate_of_another_cluster_with_our_ca_is_refused() -> None:
    async with listening(WORLD, cluster="elsewhere") as port, WORLD.channel(port.port, WORLD.agent()) as through:
        with pytest.raises(GRPCError) as caught:
            await ask(through)
        assert caught.value.status is Status.UNAUTHENTICATED


@pytest.mark.parametrize(
    "paper",
    [
        pytest.param(OTHER.agent(), id="b13 other CA"),
        pytest.param(WORLD.expired(), id="b13 expired"),
        pytest.param(WORLD.workload(ca.Usage.SERVER), id="b13 wrong purpose"),
        pytest.param(None, id="none at all"),
    ],
)
@on_both_loops
async def test_certificates_that_tls_ends(paper: Paper | None) -> None:
    async with listening(WORLD) as port, WORLD.channel(port.port, paper) as through:
        with pytest.raises(status.UnreachableError):
            await ask(through)
        assert not through.connected
        await eventually(lambda: any(reason.startswith("handshake") for reason in port.refused))
        assert not port.connections


@pytest.mark.parametrize(
    ("server", "why"),
    [
        pytest.param(WORLD.workload(ca.Usage.SERVER), "is not the server", id="workload"),
        pytest.param(WORLD.workload(*ca.Usage), "is not the server", id="workload for both purposes"),
        pytest.param(WORLD.server(shard="zone-b"), "expected shard zone-a, found zone-b", id="other shard"),
        pytest.param(WORLD.agent(), "certificate is not signed by the cluster's CA", id="agent"),
        pytest.param(OTHER.server(), "certificate is not signed by the cluster's CA", id="other CA"),
    ],
)
@on_both_loops
async def test_nothing_is_sent_to_a_false_server(server: Paper, why: str) -> None:
    """The false server here takes any client, so that it would see a request."""
    context = WORLD.server_context(server, clients=False)
    service = agents()
    async with (
        listening(WORLD, service, context=lambda: context, role=None) as port,
        WORLD.channel(port.port, WORLD.agent()) as through,
    ):
        with pytest.raises(status.UnreachableError, match=why):
            await ask(through)
        await eventually(lambda: not port.connections)
        assert not service.entered


async def test_a_server_of_another_cluster_is_refused() -> None:
    async with (
        listening(WORLD) as port,
        WORLD.channel(port.port, WORLD.agent(), expect=channel.ExpectedServer("other", SHARD)) as through,
    ):
        with pytest.raises(channel.WrongServerError, match="expected cluster other, found demo"):
            await ask(through)


async def test_a_client_that_does_not_know_the_shard_takes_any_server() -> None:
    async with (
        listening(WORLD) as port,
        WORLD.channel(port.port, WORLD.agent(), expect=channel.ExpectedServer(WORLD.cluster, None)) as through,
    ):
        await ask(through)
        assert through.server is not None
        assert through.server.shard == SHARD


@on_both_loops
async def test_a_new_certificate_serves_new_connections_and_keeps_the_old_ones() -> None:
    contexts = [WORLD.server_context(WORLD.server(id="before"))]
    async with (
        listening(WORLD, context=lambda: contexts[-1]) as port,
        WORLD.channel(port.port, WORLD.agent()) as old,
        WORLD.channel(port.port, WORLD.agent()) as new,
    ):
        await ask(old)
        contexts.append(WORLD.server_context(WORLD.server(id="after")))
        await ask(new)
        await ask(old)
        assert old.server is not None
        assert new.server is not None
        assert (old.server.id, new.server.id) == ("before", "after")
        assert len(port.connections) == 2


async def test_a_ca_that_is_gone_from_the_context_is_refused_on_new_connections() -> None:
    contexts = [WORLD.server_context()]
    async with listening(WORLD, context=lambda: contexts[-1]) as port:
        paper = WORLD.server()
        contexts.append(
            tls.server_context(certificate_pem=paper.certificate_pem, key_pem=paper.key_pem, ca_pem=OTHER.ca.pem)
        )
        async with WORLD.channel(port.port, WORLD.agent()) as through:
            with pytest.raises(status.UnreachableError):
                await ask(through)


async def test_a_context_that_cannot_be_made_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    good = WORLD.server_context()
    calls = iter([None, good, good])

    def context() -> ssl.SSLContext:
        made = next(calls)
        if made is None:
            raise tls.TlsError("no certificate today")
        return made

    async with listening(WORLD, context=context) as port:
        for expected in (False, True):
            async with WORLD.channel(port.port, WORLD.agent()) as through:
                try:
                    await ask(through)
                    worked = True
                except status.UnreachableError:
                    worked = False
                assert worked is expected
    assert "no certificate today" in caplog.text


async def test_a_service_may_refuse_whom_it_knows() -> None:
    async def unknown(stream: Any) -> None:
        raise status.unauthenticated("instance is not registered")

    async with (
        listening(WORLD, agents(SubmitPublicKeys=unknown)) as port,
        WORLD.channel(port.port, WORLD.agent()) as through,
    ):
        with pytest.raises(GRPCError, match="not registered"):
            await ask(through)


async def test_without_a_role_the_certificate_is_read_but_not_judged() -> None:
    context = WORLD.server_context(clients=False)
    async with (
        listening(WORLD, Registrations(), agents(), context=lambda: context, role=None) as port,
        WORLD.channel(port.port) as through,
    ):
        await ask(through)
        assert port.connections[0].identity is None
