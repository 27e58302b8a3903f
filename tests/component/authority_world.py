"""A cluster's authority over object storage in memory."""

import asyncio

from cryptography.hazmat.primitives.serialization import Encoding

from nstance.authority import keyset, operators
from nstance.authority import open as opening
from nstance.model.ids import ClusterId, InstanceId, ShardId, TenantId
from nstance.objects import memory
from nstance.pki import ca, keys, names, nonce, peer
from nstance.secretstore import sealing
from nstance.sim.rng import SeededRng

CLUSTER = ClusterId("prod")
TENANT = TenantId("acme")
SHARD = ShardId("dev-1")
INSTANCE = InstanceId("etc-01jw51srryegh9snf9cmeh3k4q")
PLACES = opening.Places("cluster/")
RING = sealing.Keyring(b"k" * 32)


class TestClock:
    """Stands still unless told."""

    __test__ = False

    def __init__(self) -> None:
        self.now = 1_800_000_000.25

    def monotonic(self) -> float:
        return self.now

    boot = wall = steady = monotonic

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


CLOCK = TestClock()


def new_store() -> memory.MemoryStore:
    return memory.MemoryStore(CLOCK)


async def open_it(
    store: memory.MemoryStore,
    *,
    ring: sealing.Keyring | None = RING,
    cluster: ClusterId = CLUSTER,
    create: bool = True,
    insecure_dev: bool = False,
    seed: int = 1,
) -> keyset.Authority:
    rng = SeededRng(seed)
    vault = opening.open_vault(store, keyring=ring, cluster=cluster, rng=rng, insecure_dev=insecure_dev)
    return await opening.open_authority(vault, PLACES, clock=CLOCK, create=create)


def safe(store: memory.MemoryStore, ring: sealing.Keyring = RING, seed: int = 5) -> opening.Vault:
    return opening.open_vault(store, keyring=ring, cluster=CLUSTER, rng=SeededRng(seed))


def people(store: memory.MemoryStore, seed: int = 9) -> operators.Operators:
    return operators.Operators(store, prefix="cluster/", cluster=CLUSTER, clock=CLOCK, rng=SeededRng(seed))


KEY = keys.generate(SeededRng(20))
PUBLIC = keys.public_bytes(KEY)


def identity_of(issued: ca.Issued) -> names.Identity:
    return peer.identify(ca.load_certificate(issued.pem).public_bytes(Encoding.DER))


async def claims_of(store: memory.MemoryStore, authority: keyset.Authority) -> nonce.OperatorClaims:
    token = people(store).new_nonce(authority, tenant=TENANT)
    return authority.verify_operator_nonce(token, now=CLOCK.now)
