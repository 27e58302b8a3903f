"""Registration at a whole server: what is refused, what the log says of it, and what the caller learns."""

import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from component.whole_server import CLUSTER, SECONDS, World, config, states
from nstance.model.ids import ClusterId, GroupName, InstanceId, ShardId, TenantId
from nstance.model.instance import Instance
from nstance.objects.memory import Fate
from nstance.pki import keys, nonce, proof
from nstance.providers.errors import UnavailableError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.server.api import asking, registrar
from nstance.server.api.registrar import INVALID, MAX_FAILURES, WINDOW_SECONDS, Registrar
from nstance.server.config.advertised import Advertised
from nstance.v1 import registration_pb2
from support.eventually import eventually

AWAY = "203.0.113.7"


class Later:
    """The world's clock, and a hand that moves it."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self.ahead = 0.0

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.ahead

    boot = monotonic

    def wall(self) -> float:
        return self._clock.wall()

    def steady(self) -> float:
        return self._clock.steady()

    async def sleep(self, seconds: float) -> None:
        self.ahead += seconds


class Desk:
    """A registrar of the leader, and two instances that nobody has registered yet."""

    def __init__(self, world: World) -> None:
        self.world, self.clock = world, Later(world)
        self.lead = world.leader.lead_now
        self.registrar = self.make_registrar(world.leader.configured.env.advertised)
        self.one, self.other = list(world.leader.shard.instances.values())[:2]

    def make_registrar(self, advertised: Advertised) -> Registrar:
        metrics = self.world.leader.server.metrics
        return Registrar(self.lead, self.world.operators(), advertised, metrics, self.clock)

    def claims(self, instance: Instance) -> nonce.AgentClaims:
        return self.lead.issuer.verify(self.lead.issuer.token(instance))

    def token(self, of: Instance, /, **changed: object) -> str:
        """A nonce that we signed, for something else than it should be."""
        return self.lead.issuer.authority.sign_nonce(dataclasses.replace(self.claims(of), **changed))  # type: ignore[arg-type]

    def request(
        self, token: str, key: Ed25519PrivateKey | None = None, **fields: str
    ) -> registration_pb2.RegisterAgentRequest:
        key = key or keys.generate(self.world.rng)
        return registration_pb2.RegisterAgentRequest(
            nonce=token,
            public_key_pem=keys.public_to_pem(keys.public_bytes(key)),
            proof=proof.prove_registration(key, cluster=CLUSTER, nonce=token),
            **fields,
        )

    async def refused(self, request: registration_pb2.RegisterAgentRequest, address: str = "127.0.0.1") -> GRPCError:
        with pytest.raises(GRPCError) as caught:
            await self.registrar.register_agent(request, address)
        return caught.value


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with World(tmp_path, config(groups={"acme": {"web": {"template": "web", "size": 2}}}), agents=False) as world:
        world.behavior.then(Call.CREATE, Outcome(before=4 * SECONDS, applied=False, error=UnavailableError("slow")))
        await world.start()
        await eventually(lambda: len(states(world, "web", "acme")) == 2)
        yield Desk(world)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"issued": 1000, "expires": 2000}, "valid from 1000 to 2000", id="expired"),
        pytest.param({"issued": 1 << 39, "expires": (1 << 39) + 1}, f"valid from {1 << 39}", id="not yet valid"),
        pytest.param({"cluster": ClusterId("other")}, "expected cluster demo, found other", id="another cluster"),
        pytest.param({"shard": ShardId("zone-b")}, "expected shard zone-a, found zone-b", id="another shard"),
        pytest.param({"instance": InstanceId("web-01m7fkx6f4ep28abba93yprapj")}, "no instance", id="unknown"),
        pytest.param({"tenant": TenantId("globex")}, "no instance", id="another tenant"),
        pytest.param({"group": GroupName("db")}, "no instance", id="another group"),
        pytest.param({"on_demand": True}, "no instance", id="on-demand"),
        pytest.param({"jti": "0" * 32}, "no instance", id="another nonce"),
    ],
)
async def test_the_log_says_why_and_the_caller_does_not_learn_it(
    desk: Desk, caplog: pytest.LogCaptureFixture, changed: dict[str, object], reason: str
) -> None:
    with caplog.at_level(logging.WARNING):
        error = await desk.refused(desk.request(desk.token(desk.one, **changed)))
    assert (error.status, error.message) == (Status.UNAUTHENTICATED, INVALID)
    (record,) = [r for r in caplog.records if r.message == "registration rejected"]
    assert reason in record.__dict__["reason"]
    assert not desk.lead.shard.instances[desk.one.id].public_key


async def test_a_bad_signature_and_another_kind_get_the_same_answer(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    token = desk.token(desk.one)
    head, body, _ = token.split(".")
    forged = f"{head}.{body}.{desk.token(desk.other).split('.')[2]}"
    operators = desk.world.operators().new_nonce(desk.lead.issuer.authority, tenant=TenantId("acme"))
    expected = ("wrong signature", "expected an agent's nonce, found an operator's", "three parts")
    for bad, reason in zip((forged, operators, "x"), expected, strict=True):
        caplog.clear()
        error = await desk.refused(desk.request(bad))
        assert (error.status, error.message) == (Status.UNAUTHENTICATED, INVALID)
        assert any(reason in str(record.__dict__.get("reason")) for record in caplog.records)


async def test_a_key_that_another_instance_has_is_refused(desk: Desk) -> None:
    key = keys.generate(desk.world.rng)
    await desk.registrar.register_agent(desk.request(desk.token(desk.one), key), "127.0.0.1")
    error = await desk.refused(desk.request(desk.token(desk.other), key))
    assert error.status is Status.PERMISSION_DENIED
    assert not desk.lead.shard.instances[desk.other.id].public_key
    await desk.registrar.register_agent(desk.request(desk.token(desk.other)), "127.0.0.1")


@pytest.mark.parametrize("field", ["ipv4", "ipv6"])
async def test_an_agent_cannot_claim_a_servers_address(desk: Desk, field: str) -> None:
    advertised = desk.world.leader.configured.env.advertised
    desk.registrar = desk.make_registrar(dataclasses.replace(advertised, hosts=frozenset({"192.0.2.9", "2001:db8::9"})))
    address = "192.0.2.9" if field == "ipv4" else "2001:db8::9"
    error = await desk.refused(desk.request(desk.token(desk.one), None, **{field: address}))
    assert error.status is Status.PERMISSION_DENIED
    assert not desk.lead.shard.instances[desk.one.id].public_key


async def test_failures_are_limited_by_address_and_for_a_while(desk: Desk) -> None:
    bad = desk.request("x.y.z")
    for _ in range(MAX_FAILURES):
        assert (await desk.refused(bad, AWAY)).status is Status.UNAUTHENTICATED
    good = desk.request(desk.token(desk.one))
    assert (await desk.refused(good, AWAY)).status is Status.RESOURCE_EXHAUSTED
    assert (await desk.refused(bad, "203.0.113.8")).status is Status.UNAUTHENTICATED  # others are not affected
    await desk.clock.sleep(WINDOW_SECONDS)
    await desk.registrar.register_agent(good, AWAY)


async def test_the_machine_itself_is_not_limited_and_memory_is(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = desk.request("x.y.z")
    for _ in range(MAX_FAILURES + 1):
        assert (await desk.refused(bad, "127.0.0.1")).status is Status.UNAUTHENTICATED
    monkeypatch.setattr(registrar, "MAX_ADDRESSES", 5)
    for number in range(20):
        await desk.refused(bad, f"203.0.113.{number}")
    assert len(desk.registrar._failures._seen) == 5


async def test_a_registration_that_cannot_be_stored_is_tried_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call waited for ever while storage did not answer."""
    monkeypatch.setattr(asking, "ANSWER_TIMEOUT_SECONDS", 0.05)
    desk.world.fate = lambda verb, key: Fate(before=3600.0) if "/journal/" in key else Fate()
    error = await desk.refused(desk.request(desk.token(desk.one)), AWAY)
    assert (error.status, error.message) == (Status.UNAVAILABLE, "failed to store the request in time, try again")
