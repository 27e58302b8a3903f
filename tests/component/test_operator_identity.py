"""The operator's identity: registration, every crash in between, two at once, renewal, and each fatal line."""

import asyncio
import base64
import contextlib
import functools
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from component.whole_server import CLUSTER, SECONDS, SHARD, World, config
from nstance.clock import SystemClock, SystemRng
from nstance.config.addresses import Service
from nstance.kube import errors, kinds, memory
from nstance.kube.kinds import Kind
from nstance.kube.memory import Fate, MemoryKube, Verb
from nstance.model.ids import ShardId, TenantId
from nstance.operator.config_file import Configuration, Endpoints
from nstance.operator.errors import FatalError
from nstance.operator.metrics import Metrics
from nstance.operator.options import Environment, Waits
from nstance.operator.shards import registration
from nstance.operator.shards.identity import IdentityStore
from nstance.operator.shards.links import Links
from nstance.operator.shards.ports import ShardUnreachableError
from nstance.pki import ca, keys
from nstance.v1 import registration_pb2
from nstance.wire.limits import Limits
from support.eventually import eventually

NAMES = Environment(namespace="default")
WAITS = Waits(kube_retry=0.01, registration=0.2)
SECRETS = (NAMES.key_secret, NAMES.cert_secret)


class Cluster:
    """A Kubernetes with what the operator needs before it starts."""

    def __init__(self, world: World, *, ca_pem: str = "", nonce: str | None = "") -> None:
        self.world = world
        self.clock: SystemClock = world.clock
        self.api = memory.cluster(world.clock, world.rng)
        self.kube = MemoryKube(self.api, world.clock)
        authority = world.leader.lead_now.issuer.authority
        token = world.operators().new_nonce(authority, tenant=TenantId("default")) if nonce == "" else nonce
        self._wanted = (ca_pem or world.ca_pem, token)

    async def prepared(self) -> "Cluster":
        ca_pem, token = self._wanted
        await self.kube.create(
            kinds.CONFIG_MAP,
            {"metadata": {"name": NAMES.ca_configmap}, "data": {"ca.crt": ca_pem}},
            namespace="default",
        )
        if token is not None:
            await self.put(NAMES.nonce_secret, {"nonce.jwt": token + "\n"})
        return self

    async def put(self, name: str, content: dict[str, str]) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
        await self.kube.create(kinds.SECRET, {"metadata": {"name": name}, "data": data}, namespace="default")

    async def secret(self, name: str) -> dict[str, str] | None:
        try:
            found = await self.kube.get(kinds.SECRET, name, namespace="default")
        except errors.NotFoundError:
            return None
        return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}

    def identity_store(
        self, kube: MemoryKube | None = None, *, configuration: Configuration | None = None
    ) -> IdentityStore:
        return IdentityStore(
            kube or self.kube,
            NAMES,
            configuration or settings(self.world),
            clock=self.clock,
            rng=self.world.rng,
            waits=WAITS,
        )


def settings(world: World, *, cluster: str = CLUSTER, tenant: str = "default", **more: str) -> Configuration:
    number = list(Service).index(Service.REGISTRATION)
    shards = {
        SHARD: Endpoints(
            registration=tuple(f"127.0.0.1:{server.base + number}" for server in world.servers.values()),
            operator=tuple(f"127.0.0.1:{server.base + number + 1}" for server in world.servers.values()),
        )
    }
    for name, address in more.items():
        shards[ShardId(name)] = Endpoints(registration=(address,), operator=(address,))
    return Configuration(cluster=type(CLUSTER)(cluster), tenant=TenantId(tenant), shards=shards)


async def test_a_first_start_registers_and_a_second_one_reuses(tmp_path: Path) -> None:
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        cluster = await Cluster(world).prepared()
        first = await cluster.identity_store().obtain()
        assert (first.who.cluster, first.who.tenant) == (CLUSTER, "default")
        pair, kept = await cluster.secret(NAMES.key_secret), await cluster.secret(NAMES.cert_secret)
        assert pair is not None
        assert kept is not None
        assert set(pair) == {"private.key", "public.key"}
        assert keys.public_key_from_pem(pair["public.key"]) == keys.public_bytes(
            keys.private_key_from_pem(pair["private.key"])
        )
        assert kept["tls.crt"] == first.certificate_pem
        assert kept["tls.key"] == pair["private.key"]
        await cluster.kube.delete(kinds.SECRET, NAMES.nonce_secret, namespace="default")
        again = await cluster.identity_store().obtain()
        assert again.certificate_pem == first.certificate_pem
        assert "PRIVATE" not in repr(again)


class Crash(BaseException):
    """The process ends here."""


async def test_a_crash_at_any_call_is_made_good_by_the_next_start(tmp_path: Path) -> None:
    """Before or after each call to Kubernetes; the key that was stored is the key that is certified."""
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        for lost in (False, True):
            for step in range(20):
                cluster = await Cluster(world).prepared()
                calls = 0

                async def fate(verb: Verb, kind: Kind, name: str, *, step: int = step, lost: bool = lost) -> Fate:
                    nonlocal calls
                    calls += 1
                    if calls == step + 1 and not lost:
                        raise Crash
                    if calls == step + 2 and lost:
                        raise Crash  # after the call before it was applied
                    return Fate()

                try:
                    await cluster.identity_store(MemoryKube(cluster.api, world.clock, faults=fate)).obtain()
                    crashed = False
                except Crash:
                    crashed = True
                pair = await cluster.secret(NAMES.key_secret)
                found = await cluster.identity_store().obtain()
                after = await cluster.secret(NAMES.key_secret)
                assert pair is None or after == pair
                assert after is not None
                assert found.key_pem.decode() == after["private.key"]
                if not crashed:
                    break
            else:
                raise AssertionError("it never came to its end")
        operators = await world.operators().list()
        assert len({each.jti for each in operators}) == len(operators)


@pytest.mark.parametrize("verb", [Verb.GET, Verb.CREATE])
async def test_an_api_server_that_fails_is_asked_again(tmp_path: Path, verb: Verb) -> None:
    """An error is never read as an absence: no second key, whatever answer is lost."""
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        cluster = await Cluster(world).prepared()
        seen: set[tuple[Verb, str]] = set()

        async def fate(asked: Verb, kind: Kind, name: str) -> Fate:
            if asked is verb and (asked, name) not in seen:
                seen.add((asked, name))
                return Fate(lost=True)
            return Fate()

        found = await cluster.identity_store(MemoryKube(cluster.api, world.clock, faults=fate)).obtain()
        kept = await cluster.secret(NAMES.cert_secret)
        assert kept is not None
        assert kept["tls.crt"] == found.certificate_pem
        assert len(seen) >= 2


async def test_two_operators_that_start_at_once_end_up_with_one_identity(tmp_path: Path) -> None:
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        cluster = await Cluster(world).prepared()

        async def slowly(verb: Verb, kind: Kind, name: str) -> Fate:
            return Fate(before=world.rng.uniform(0, 0.01), after=world.rng.uniform(0, 0.01))

        stores = [cluster.identity_store(MemoryKube(cluster.api, world.clock, faults=slowly)) for _ in range(4)]
        found = await asyncio.gather(*(store.obtain() for store in stores))
        assert len({each.certificate_pem for each in found}) == 1
        assert len(await world.operators().list()) == 1


async def test_a_silent_shard_does_not_keep_from_registering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A black hole: the system takes connections for a process that never looks at them, and nobody gives up on it."""
    patient = functools.partial(registration.channel.Channel, limits=Limits(handshake_seconds=3600.0))
    monkeypatch.setattr(registration.channel, "Channel", patient)
    monkeypatch.setattr(registration, "CALL_SECONDS", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as hole:
        async with World(tmp_path, config(), agents=False) as world:
            await world.start()
            cluster = await Cluster(world).prepared()
            configuration = settings(world, hole=f"127.0.0.1:{hole.getsockname()[1]}", dead="127.0.0.1:9")
            async with asyncio.timeout(SECONDS):
                await cluster.identity_store(configuration=configuration).obtain()


async def _without_nonce(cluster: Cluster) -> IdentityStore:
    await cluster.kube.delete(kinds.SECRET, NAMES.nonce_secret, namespace="default")
    return cluster.identity_store()


async def _without_ca(cluster: Cluster) -> IdentityStore:
    await cluster.kube.delete(kinds.CONFIG_MAP, NAMES.ca_configmap, namespace="default")
    return cluster.identity_store()


async def _with_garbage_for_ca(cluster: Cluster) -> IdentityStore:
    patch = {"data": {"ca.crt": "hello"}}
    await cluster.kube.patch(kinds.CONFIG_MAP, NAMES.ca_configmap, patch, namespace="default")
    return cluster.identity_store()


async def _with_another_ca(cluster: Cluster) -> IdentityStore:
    other = ca.new_ca(CLUSTER, now=cluster.clock.wall(), rng=SystemRng())
    patch = {"data": {"ca.crt": other.pem}}
    await cluster.kube.patch(kinds.CONFIG_MAP, NAMES.ca_configmap, patch, namespace="default")
    return cluster.identity_store()


async def _with_a_spent_nonce(cluster: Cluster) -> IdentityStore:
    await cluster.identity_store().obtain()
    for name in SECRETS:
        await cluster.kube.delete(kinds.SECRET, name, namespace="default")
    return cluster.identity_store()


async def _with_an_expired_nonce(cluster: Cluster) -> IdentityStore:
    authority = cluster.world.leader.lead_now.issuer.authority
    token = cluster.world.operators().new_nonce(authority, tenant=TenantId("default"), life=1)
    await cluster.kube.delete(kinds.SECRET, NAMES.nonce_secret, namespace="default")
    await cluster.put(NAMES.nonce_secret, {"nonce.jwt": token})
    cluster.clock = Later(120)
    return cluster.identity_store()


async def _with_words_for_a_nonce(cluster: Cluster) -> IdentityStore:
    await cluster.kube.delete(kinds.SECRET, NAMES.nonce_secret, namespace="default")
    await cluster.put(NAMES.nonce_secret, {"nonce.jwt": "hello"})
    return cluster.identity_store()


async def _with_another_tenant(cluster: Cluster) -> IdentityStore:
    return cluster.identity_store(configuration=settings(cluster.world, tenant="acme"))


async def _with_nobody_there(cluster: Cluster) -> IdentityStore:
    nowhere = Endpoints(registration=("127.0.0.1:9",), operator=("127.0.0.1:9",))
    return cluster.identity_store(
        configuration=Configuration(cluster=CLUSTER, tenant=TenantId("default"), shards={SHARD: nowhere})
    )


async def _with_a_damaged_key(cluster: Cluster) -> IdentityStore:
    await cluster.put(NAMES.key_secret, {"private.key": "hello"})
    return cluster.identity_store()


async def _with_a_certificate_of_another_tenant(cluster: Cluster) -> IdentityStore:
    await cluster.identity_store().obtain()
    return cluster.identity_store(configuration=settings(cluster.world, tenant="acme"))


async def _without_rights(cluster: Cluster) -> IdentityStore:
    async def fate(verb: Verb, kind: Kind, name: str) -> Fate:
        return Fate(error=errors.ForbiddenError("secrets is forbidden") if kind is kinds.SECRET else None)

    return cluster.identity_store(MemoryKube(cluster.api, cluster.clock, faults=fate))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without_nonce, ["default/nstance-operator-nonce is missing", "nstance-admin cluster nonce"]),
        (_without_ca, ["ConfigMap default/nstance-cluster-ca is missing", "kubectl create configmap"]),
        (_with_garbage_for_ca, ["ca.crt in ConfigMap default/nstance-cluster-ca is not"]),
        (_with_another_ca, ["not of the CA in ConfigMap default/nstance-cluster-ca"]),
        (_with_a_spent_nonce, ["was rejected", "used with another key", "invalid registration nonce"]),
        (_with_an_expired_nonce, ["expired at"]),
        (_with_words_for_a_nonce, ["is no registration nonce"]),
        (_with_another_tenant, ["is for cluster demo and tenant default", "demo and acme"]),
        (_with_nobody_there, ["no shard could be reached", "127.0.0.1:9"]),
        (_with_a_damaged_key, ["private.key in Secret default/nstance-operator-key cannot be used"]),
        (_with_a_certificate_of_another_tenant, ["nstance-operator-cert cannot be used", "tenant default"]),
        (_without_rights, ["not allowed to read Secret default/nstance-operator-cert", "forbidden"]),
    ],
)
async def test_each_fault_has_its_own_fatal_line(
    tmp_path: Path,
    spoil: Callable[[Cluster], Awaitable[IdentityStore]],
    words: list[str],
) -> None:
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        cluster = await Cluster(world).prepared()
        store = await spoil(cluster)
        with pytest.raises(FatalError) as fatal:
            await store.obtain()
        for word in words:
            assert word in str(fatal.value)
        assert "\n" not in str(fatal.value)


class Later(SystemClock):
    """The real clock, with a wall of its own."""

    def __init__(self, ahead: float) -> None:
        super().__init__()
        self.ahead = ahead

    def wall(self) -> float:
        return super().wall() + self.ahead

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.02))


async def test_a_certificate_is_renewed_stored_and_used_for_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        cluster = await Cluster(world).prepared()
        store = cluster.identity_store()
        first = await store.obtain()
        clock = Later(0)
        store._clock = clock
        links = Links(
            settings(world), credentials=store.credentials, metrics=Metrics(), clock=world.clock, rng=world.rng
        )
        certificates: list[str] = []
        tasks = [
            asyncio.create_task(links.run()),
            asyncio.create_task(store.renew(links.renew_certificate, lambda c: certificates.append(c.certificate_pem))),
        ]
        try:
            link = links.get(SHARD)
            assert link is not None
            await eventually(lambda: link.synced)
            assert store.current is first
            clock.ahead = first.renew_at - first.begins
            await eventually(lambda: store.current is not first)
            clock.ahead = 0.0
            fresh = store.credentials()
            kept = await cluster.secret(NAMES.cert_secret)
            assert kept is not None
            assert (kept["tls.crt"], kept["tls.key"]) == (fresh.certificate_pem, first.key_pem.decode())
            assert kept["ca.crt"].strip() == world.ca_pem.strip()
            assert (await cluster.identity_store().obtain()).certificate_pem == fresh.certificate_pem
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert certificates[0] == first.certificate_pem


async def test_a_renewal_by_another_operator_is_taken_over(tmp_path: Path) -> None:
    async with World(tmp_path, config(), agents=False) as world:
        await world.start()
        cluster = await Cluster(world).prepared()
        one, two = cluster.identity_store(), cluster.identity_store()
        first = await one.obtain()
        await two.obtain()
        asked = 0

        async def renewed(links: Links) -> registration_pb2.RegisterResponse | None:
            with contextlib.suppress(ShardUnreachableError):
                return await links.renew_certificate()
            return None

        async def ask() -> registration_pb2.RegisterResponse:
            nonlocal asked
            asked += 1
            links = Links(
                settings(world), credentials=lambda: first, metrics=Metrics(), clock=world.clock, rng=world.rng
            )
            running = asyncio.create_task(links.run())
            try:
                return await eventually(functools.partial(renewed, links))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        late = Later(first.renew_at - world.clock.wall() + 1)
        one._clock = two._clock = late
        fresh = await one._renew_once(ask)
        late.ahead = 0.0
        assert fresh.certificate_pem != first.certificate_pem
        assert (await two._renew_once(ask)).certificate_pem == fresh.certificate_pem
        assert asked == 1


async def test_an_expired_certificate_is_replaced_with_a_new_nonce(tmp_path: Path) -> None:
    async with World(tmp_path, config(identity={"operator_ttl": "1h"}), agents=False) as world:
        await world.start()
        cluster = await Cluster(world).prepared()
        first = await cluster.identity_store().obtain()
        cluster.clock = Later(first.expires - world.clock.wall() + 1)
        with pytest.raises(FatalError):  # its nonce would only give the same certificate again
            await cluster.identity_store().obtain()
