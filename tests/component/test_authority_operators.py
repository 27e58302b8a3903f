"""Operators register once, at any shard, and what is issued is written down."""

import asyncio
import json
import random

import pytest

from component.authority_world import (
    CLOCK,
    CLUSTER,
    INSTANCE,
    PUBLIC,
    SHARD,
    TENANT,
    claims_of,
    identity_of,
    new_store,
    open_it,
    people,
)
from nstance.authority import certlog, errors, keyset
from nstance.model.ids import GroupName, OperatorId, TenantId
from nstance.model.instance import Instance, State
from nstance.model.roles import Role
from nstance.objects import errors as storage
from nstance.objects import memory
from nstance.objects.memory import Fate, Verb
from nstance.objects.port import MAX_READ
from nstance.pki import ca, fields, keys, names
from nstance.sim.rng import SeededRng

OTHER = keys.public_bytes(keys.generate(SeededRng(21)))


async def test_operators_register_once_at_any_shard() -> None:
    store = new_store()
    authority = await open_it(store)
    claims = await claims_of(store, authority)
    assert claims.expires - claims.issued == 3 * 3600
    first, issued = await people(store, 1).register(authority, claims, PUBLIC)
    assert identity_of(issued) == first.identity == names.Operator(CLUSTER, TENANT, first.operator)
    again, same = await people(store, 2).register(authority, claims, PUBLIC)
    assert (again, same) == (first, issued)
    before = store.contents()
    with pytest.raises(errors.NonceUsedError):
        await people(store, 3).register(authority, claims, OTHER)
    assert store.contents() == before
    assert f"cluster/operator-nonce/{claims.jti}" in before
    assert f"cluster/operator/acme.{first.operator}.json" in before
    assert await people(store).list() == [first]


@pytest.mark.parametrize("seed", range(10))
async def test_two_keys_race_for_one_nonce(seed: int) -> None:
    store = new_store()
    authority = await open_it(store)
    claims = await claims_of(store, authority)
    source = random.Random(seed)

    async def delays(verb: Verb, key: str) -> Fate:
        return Fate(before=source.uniform(0, 0.003), after=source.uniform(0, 0.003), lost=verb is Verb.CREATE)

    results = await asyncio.gather(
        *(people(store.view(delays), n).register(authority, claims, key) for n, key in enumerate([PUBLIC, OTHER])),
        return_exceptions=True,
    )
    assert sum(isinstance(result, errors.NonceUsedError) for result in results) == 1
    assert len(await people(store).list()) == 1


async def test_a_crash_between_binding_and_registration() -> None:
    store = new_store()
    authority = await open_it(store)
    claims = await claims_of(store, authority)

    async def crash(verb: Verb, key: str) -> Fate:
        return (
            Fate(error=storage.UnavailableError("crashed")) if verb is Verb.CREATE and "/operator/" in key else Fate()
        )

    with pytest.raises(storage.UnavailableError):
        await people(store.view(crash), 1).register(authority, claims, PUBLIC)
    assert await people(store).list() == []
    with pytest.raises(errors.NonceUsedError):
        await people(store, 2).register(authority, claims, OTHER)
    kept, issued = await people(store, 3).register(authority, claims, PUBLIC)
    assert await people(store).is_registered(kept.identity)
    assert identity_of(issued) == kept.identity


async def test_a_revoked_operator_stays_out_even_with_its_nonce() -> None:
    store = new_store()
    authority = await open_it(store)
    claims = await claims_of(store, authority)
    kept, _ = await people(store, 1).register(authority, claims, PUBLIC)
    assert await people(store).is_registered(kept.identity)
    await people(store).revoke(TENANT, kept.operator)
    await people(store).revoke(TENANT, kept.operator)
    assert not await people(store).is_registered(kept.identity)
    with pytest.raises(errors.NotRegisteredError):
        await people(store, 2).register(authority, claims, PUBLIC)
    with pytest.raises(errors.NotRegisteredError):
        await people(store).renew(authority, kept.identity, PUBLIC)
    with pytest.raises(errors.NotRegisteredError):
        await people(store).register_directly(authority, PUBLIC, tenant=TENANT, operator=kept.operator)
    with pytest.raises(errors.NotRegisteredError):
        await people(store).revoke(TenantId("other"), kept.operator)


async def test_renewal_with_a_new_key() -> None:
    store = new_store()
    authority = await open_it(store)
    kept, issued = await people(store, 1).register_directly(authority, PUBLIC, tenant=TENANT)
    renewed = await people(store, 2).renew(authority, kept.identity, OTHER)
    assert identity_of(renewed) == kept.identity
    assert renewed.serial != issued.serial
    assert renewed.key_fingerprint == keys.fingerprint(OTHER)
    assert (await people(store).list())[0].public_key == OTHER


async def test_registering_directly() -> None:
    store = new_store()
    authority = await open_it(store)
    operator = OperatorId("opr-01jw51srryegh9snf9cmeh3k4q")
    first = await people(store, 1).register_directly(authority, PUBLIC, tenant=TENANT, operator=operator, life=3600)
    assert first[1].expires == int(CLOCK.now) + 3600
    assert await people(store, 2).register_directly(authority, PUBLIC, tenant=TENANT, operator=operator) == first
    with pytest.raises(errors.ConflictError, match="another key"):
        await people(store, 2).register_directly(authority, OTHER, tenant=TENANT, operator=operator)
    for tenant, wrong in (("../x", operator), ("acme", "etc-01jw51srryegh9snf9cmeh3k4q"), ("acme", "opr-x")):
        with pytest.raises(names.IdentityError):
            await people(store).register_directly(
                authority, PUBLIC, tenant=TenantId(tenant), operator=OperatorId(wrong)
            )


async def test_not_knowing_is_not_the_same_as_not_registered() -> None:
    store = new_store()
    authority = await open_it(store)
    kept, _ = await people(store, 1).register_directly(authority, PUBLIC, tenant=TENANT)

    async def down(verb: Verb, key: str) -> Fate:
        return Fate(error=storage.UnavailableError("down"))

    with pytest.raises(storage.UnavailableError):
        await people(store.view(down)).is_registered(kept.identity)
    key = f"cluster/operator/acme.{kept.operator}.json"
    body = json.loads(store.contents()[key])
    for damaged, kind in (
        (b"{", errors.UnreadableError),
        (b"[]", errors.UnreadableError),
        (json.dumps({**body, "v": 2}).encode(), errors.UnreadableError),
        (json.dumps({**body, "revoked": "no"}).encode(), errors.UnreadableError),
        (json.dumps({**body, "cluster": "other"}).encode(), errors.WrongClusterError),
    ):
        store.tamper(key, damaged)
        with pytest.raises(kind):
            await people(store).is_registered(kept.identity)
    store.tamper(key, None)
    assert not await people(store).is_registered(kept.identity)


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"{", id="cut off"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(bytes(MAX_READ + 1), id="huge"),
    ],
)
async def test_a_damaged_registration_hides_no_other(damaged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    authority = await open_it(store)
    kept, _ = await people(store, 1).register_directly(authority, PUBLIC, tenant=TENANT)
    broken, _ = await people(store, 2).register_directly(authority, OTHER, tenant=TenantId("globex"))
    key = f"cluster/operator/globex.{broken.operator}.json"
    store.tamper(key, damaged)
    assert await people(store).list() == [kept]
    [record] = [record for record in caplog.records if getattr(record, "key", "") == key]
    assert key in record.getMessage()  # all that `nstance-admin cluster operators` shows


async def log(store: memory.MemoryStore, authority: keyset.Authority, seed: int = 1) -> str:
    signer = authority.signer(CLOCK.now)
    spec = ca.WorkloadSpec(usages=frozenset({ca.Usage.SERVER}), subject=fields.Subject(cn=INSTANCE))
    issued = signer.issue_workload(spec, PUBLIC, serial=ca.new_serial(SeededRng(seed)), issued=CLOCK.now)
    return await certlog.write(
        store,
        [certlog.Logged("server.crt", issued)],
        shard=SHARD,
        instance=Instance(id=INSTANCE, tenant=TENANT, group=GroupName("web"), state=State.RUNNING, created=CLOCK.now),
        now=CLOCK.now,
        rng=SeededRng(seed),
    )


async def test_the_certificate_log_says_what_was_issued() -> None:
    store = new_store()
    authority = await open_it(store)
    key = await log(store, authority)
    assert key == f"shard/dev-1/certlog/acme.20270115T080000250000Z.{INSTANCE}.json"
    entry = json.loads(store.contents()[key])
    (certificate,) = entry["certificates"]
    assert certificate["name"] == "server.crt"
    assert certificate["serial"] == f"{ca.new_serial(SeededRng(1)):032x}"
    assert certificate["expires"] == int(CLOCK.now + ca.WORKLOAD_LIFE)
    assert certificate["key_sha256"] == keys.fingerprint(PUBLIC)
    assert entry["instance"] == INSTANCE


async def test_two_batches_in_one_moment_are_both_kept() -> None:
    store = new_store()
    authority = await open_it(store)
    assert await log(store, authority, 1) != await log(store, authority, 2)


async def test_a_log_that_cannot_be_written_is_an_error() -> None:
    store = new_store()
    authority = await open_it(store)

    async def down(verb: Verb, key: str) -> Fate:
        return Fate(error=storage.PermissionDeniedError("no")) if "certlog" in key else Fate()

    with pytest.raises(storage.PermissionDeniedError):
        await log(store.view(down), authority)

    async def lost(verb: Verb, key: str) -> Fate:
        return Fate(lost=verb is Verb.CREATE)

    key = await log(store.view(lost), authority)
    assert key in store.contents()


async def test_the_role_is_fixed_when_an_operator_registers() -> None:
    store = new_store()
    authority = await open_it(store)
    kept, issued = await people(store, 1).register_directly(authority, PUBLIC, tenant=TENANT, role=Role.VIEWER)
    assert identity_of(issued).role is Role.VIEWER
    with pytest.raises(errors.ConflictError, match="registered as viewer, not as admin"):
        await people(store).register_directly(authority, PUBLIC, tenant=TENANT, operator=kept.operator, role=Role.ADMIN)
    renewed = await people(store, 2).renew(authority, kept.identity, OTHER)
    assert identity_of(renewed).role is Role.VIEWER
