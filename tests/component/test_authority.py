"""The cluster's authority over object storage: made once, never twice, opened only with the right key."""

import asyncio
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from component.authority_world import (
    CLOCK,
    CLUSTER,
    INSTANCE,
    PLACES,
    PUBLIC,
    RING,
    SHARD,
    TENANT,
    TestClock,
    new_store,
    open_it,
    safe,
)
from nstance.authority import errors, rotation
from nstance.authority import open as opening
from nstance.model.ids import ClusterId, GroupName, ServerId
from nstance.objects import errors as storage
from nstance.objects.memory import Fate, Verb
from nstance.pki import ca, fields, keys, names, nonce
from nstance.secretstore import errors as secrets
from nstance.secretstore import port, sealed, sealing
from nstance.sim.rng import SeededRng


async def test_the_first_server_makes_it_and_others_adopt_it() -> None:
    store = new_store()
    with pytest.raises(errors.NotFoundError):
        await open_it(store, create=False)
    first = await open_it(store)
    assert sorted(store.contents()) == ["cluster/ca.crt", "cluster/ca.sealed", "cluster/secret/registration-nonce.key"]
    assert store.contents()["cluster/ca.crt"].decode() == first.bundle
    before = store.contents()
    for create in (True, False):
        again = await open_it(store, seed=2, create=create)
        assert again.bundle == first.bundle
        assert again.publics == first.publics
    assert store.contents() == before
    assert await opening.find_cluster(store, PLACES) == CLUSTER


async def test_the_config_shapes_the_subject() -> None:
    made = await opening.open_authority(
        safe(new_store()), PLACES, clock=CLOCK, create=True, subject=fields.Subject(cn="Root of Acme")
    )
    assert made.signer(CLOCK.now).certificate.subject.rfc4514_string() == "CN=Root of Acme"


@pytest.mark.parametrize("seed", range(20))
async def test_servers_that_start_together_share_one_ca(seed: int) -> None:
    source = random.Random(seed)

    async def delays(verb: Verb, key: str) -> Fate:
        lost = verb in (Verb.CREATE, Verb.REPLACE) and source.random() < 0.3
        return Fate(before=source.uniform(0, 0.003), after=source.uniform(0, 0.003), lost=lost)

    store = new_store()
    opened = await asyncio.gather(*(open_it(store.view(delays), seed=n) for n in range(5)))
    assert len({(one.bundle, tuple(one.publics)) for one in opened}) == 1
    assert store.contents()["cluster/ca.crt"].decode() == opened[0].bundle


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("at", range(3))
async def test_a_crash_at_each_write_loses_nothing(at: int, applied: bool) -> None:
    store = new_store()
    writes = 0

    async def crash(verb: Verb, key: str) -> Fate:
        nonlocal writes
        if verb not in (Verb.CREATE, Verb.REPLACE):
            return Fate()
        writes += 1
        if writes <= at:
            return Fate()
        if applied and writes == at + 1:
            return Fate(lost=True)
        return Fate(error=storage.UnavailableError("crashed"))

    view = store.view(crash)
    if applied and at == 2:  # nothing is left to be written after the last write
        await open_it(view)
    else:
        with pytest.raises(storage.UnavailableError):
            await open_it(view)
    kept = {key: body for key, body in store.contents().items() if key != "cluster/ca.crt"}
    await open_it(store, seed=2)
    assert {**store.contents(), **kept} == store.contents()


async def test_ca_crt_is_written_anew_when_missing_or_damaged() -> None:
    store = new_store()
    opened = await open_it(store)
    for damage in (None, b"", b"\xffnonsense"):
        store.tamper("cluster/ca.crt", damage)
        await open_it(store, create=False)
        await open_it(store)
        assert store.contents()["cluster/ca.crt"].decode() == opened.bundle
    store.tamper("cluster/ca.crt", b"damaged")
    with pytest.raises(errors.UnreadableError):
        await opening.find_cluster(store, PLACES)
    store.tamper("cluster/ca.crt", None)
    with pytest.raises(errors.NotFoundError):
        await opening.find_cluster(store, PLACES)


async def test_a_lost_ca_key_is_never_replaced() -> None:
    store = new_store()
    await open_it(store)
    store.tamper("cluster/ca.sealed", None)
    before = store.contents()
    with pytest.raises(errors.UnreadableError, match="CA key is lost"):
        await open_it(store, seed=2)
    assert store.contents() == before


@pytest.mark.parametrize("name", ["cluster/ca.sealed", "cluster/secret/registration-nonce.key"])
async def test_damaged_objects_are_never_replaced(name: str) -> None:
    store = new_store()
    await open_it(store)
    body = store.contents()[name]
    other = store.contents()["cluster/secret/registration-nonce.key" if "ca" in name else "cluster/ca.sealed"]
    for damage in (b"", body[:-1], body[:20], bytes([*body[:-1], body[-1] ^ 1]), other):
        store.tamper(name, damage)
        before = store.contents()
        with pytest.raises(errors.UnreadableError, match=name):
            await open_it(store, seed=2)
        assert store.contents() == before


async def test_a_wrong_or_missing_key_is_fatal() -> None:
    store = new_store()
    await open_it(store)
    before = store.contents()
    with pytest.raises(errors.UnreadableError, match=sealing.key_id(b"k" * 32).hex()):
        await open_it(store, ring=sealing.Keyring(b"w" * 32))
    for insecure, says in ((False, "no encryption key"), (True, "no encryption key is configured")):
        with pytest.raises(errors.UnreadableError, match=says):
            await open_it(store, ring=None, insecure_dev=insecure)
    assert store.contents() == before


async def test_without_a_key_nothing_is_created_unless_requested() -> None:
    store = new_store()
    with pytest.raises(errors.UnreadableError, match="--insecure-dev"):
        await open_it(store, ring=None)
    assert store.contents() == {}
    opened = await open_it(store, ring=None, insecure_dev=True)
    assert (await open_it(store, ring=None, insecure_dev=True)).bundle == opened.bundle
    with pytest.raises(errors.UnreadableError, match="--insecure-dev"):
        await open_it(store)


async def test_another_clusters_storage_is_refused() -> None:
    store = new_store()
    await open_it(store)
    before = store.contents()
    with pytest.raises(errors.WrongClusterError, match="belongs to cluster prod, expected other"):
        await open_it(store, cluster=ClusterId("other"))
    store.tamper("cluster/ca.crt", None)
    with pytest.raises(errors.UnreadableError, match="another cluster than other"):
        await open_it(store, cluster=ClusterId("other"))
    assert {**before, **store.contents()} == before


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"[]",
        b"{}",
        b'{"v":1,"cluster":"prod"}',
        b'{"v":1,"cluster":"prod","cas":[]}',
        b'{"v":2,"cluster":"prod"}',
        b'{"v":1,"cluster":"prod","cas":[{"certificate":1,"key":"","signs_from":0}]}',
        b'{"v":1,"cluster":"prod","cas":[{"certificate":"x","key":"top secret","signs_from":0}]}',
    ],
)
async def test_what_opens_but_makes_no_sense_is_fatal(plain: bytes) -> None:
    store = new_store()
    blob = RING.seal(plain, cluster=CLUSTER, name="cluster/ca.sealed", rng=SeededRng(1))
    store.tamper("cluster/ca.sealed", blob)
    with pytest.raises(errors.UnreadableError) as caught:
        await open_it(store)
    assert "top secret" not in str(caught.value)
    assert store.contents() == {"cluster/ca.sealed": blob}


async def test_an_unavailable_store_is_no_absence() -> None:
    async def down(verb: Verb, key: str) -> Fate:
        return Fate(error=storage.UnavailableError("down")) if verb is Verb.GET else Fate()

    store = new_store()
    with pytest.raises(storage.UnavailableError):
        await open_it(store.view(down))
    assert store.contents() == {}


async def test_neither_keys_nor_secrets_lie_open_or_show() -> None:
    store = new_store()
    opened = await open_it(store)
    raw = opened.nonce_keys[0].key.private_bytes_raw()
    private = [keys.private_to_pem(opened.cas[0].ca.key), keys.private_to_pem(opened.nonce_keys[0].key)]
    for body in store.contents().values():
        assert b"PRIVATE" not in body
        assert raw not in body
    assert "PRIVATE" not in repr(opened)
    assert not any(text in repr(opened) for text in private)
    plain = sealed.SealedStore(store, prefix="cluster/secret/", sealer=RING, cluster=CLUSTER, rng=SeededRng(1))
    assert await plain.list() == []
    with pytest.raises(secrets.PermanentError):
        await plain.get(port.NONCE_KEY)


async def test_nonces_are_the_same_again() -> None:
    store = new_store()
    claims = nonce.AgentClaims(
        jti=nonce.new_jti(SeededRng(3)),
        cluster=CLUSTER,
        tenant=TENANT,
        instance=INSTANCE,
        shard=SHARD,
        group=GroupName("netsy"),
        on_demand=False,
        config_hash="",
        issued=int(CLOCK.now),
        expires=int(CLOCK.now) + 300,
    )
    token = (await open_it(store)).sign_nonce(claims)
    again = await open_it(store, seed=2)
    assert again.sign_nonce(claims) == token
    assert again.verify_agent_nonce(token, now=CLOCK.now, shard=SHARD) == claims
    with pytest.raises(nonce.InvalidNonceError):
        again.verify_operator_nonce(token, now=CLOCK.now)


async def test_rotating_the_nonce_key() -> None:
    store, clock = new_store(), TestClock()
    before = await open_it(store)

    def claims() -> nonce.OperatorClaims:
        now = int(clock.now)
        jti = nonce.new_jti(SeededRng(3))
        return nonce.OperatorClaims(jti=jti, cluster=CLUSTER, tenant=TENANT, issued=now, expires=now + 3600)

    old_claims = claims()
    old = before.sign_nonce(old_claims)
    await rotation.rotate_nonce_key(safe(store), PLACES, clock=clock)
    after = await open_it(store)
    assert len(after.nonce_keys) == 2
    assert after.sign_nonce(old_claims) == old
    # Until everybody has seen the new key, the old one signs.
    assert before.verify_operator_nonce(after.sign_nonce(claims()), now=clock.now) == claims()
    clock.now += rotation.NONCE_NOTICE + 1
    new = after.sign_nonce(claims())
    assert after.verify_operator_nonce(new, now=clock.now) == claims()
    assert after.verify_operator_nonce(old, now=clock.now) == old_claims
    with pytest.raises(nonce.UnknownKeyError):
        before.verify_operator_nonce(new, now=clock.now)
    with pytest.raises(errors.ConflictError, match="wait"):
        await rotation.rotate_nonce_key(safe(store), PLACES, clock=clock)
    clock.now += rotation.LONGEST_NONCE
    await rotation.rotate_nonce_key(safe(store, seed=6), PLACES, clock=clock)
    last = await open_it(store)
    with pytest.raises(nonce.UnknownKeyError):
        last.verify_operator_nonce(old, now=clock.now)


async def test_rotating_the_ca() -> None:
    store, clock = new_store(), TestClock()
    before = await open_it(store)
    old = before.signer(clock.now)
    await rotation.rotate_ca(safe(store), PLACES, clock=clock)
    with pytest.raises(errors.ConflictError, match="wait"):
        await rotation.rotate_ca(safe(store), PLACES, clock=clock)
    after = await open_it(store)
    assert after.bundle.endswith(before.bundle)
    assert store.contents()["cluster/ca.crt"].decode() == after.bundle
    assert after.signer(clock.now).pem == old.pem
    later = clock.now + rotation.CA_NOTICE + 1
    assert after.signer(later).pem == after.cas[0].ca.pem != old.pem
    # Who slept through it still knows the server, and what was issued before is issued again the same.
    assert after.server_signer(later).pem == old.pem
    assert after.signer(clock.now).pem == old.pem
    clock.now = later + rotation.CA_RETENTION
    cas = await rotation.rotate_ca(safe(store, seed=7), PLACES, clock=clock)
    assert [dated.ca.pem for dated in cas[1:]] == [after.cas[0].ca.pem]


async def test_rotations_at_the_same_time_do_not_undo_each_other() -> None:
    store = new_store()
    await open_it(store)
    results = await asyncio.gather(
        *(rotation.rotate_ca(safe(store.view(slow), seed=n), PLACES, clock=CLOCK) for n in range(3)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, list) for result in results) == 1
    assert sum(isinstance(result, errors.ConflictError) for result in results) == 2
    assert len((await open_it(store)).cas) == 2


async def slow(verb: Verb, key: str) -> Fate:
    return Fate(after=0.002)


@pytest.mark.parametrize("crash_at", range(4))
async def test_rekey_goes_on_where_it_stopped(crash_at: int) -> None:
    store = new_store()
    opened = await open_it(store)
    own = sealed.SealedStore(store, prefix="cluster/secret/", sealer=RING, cluster=CLUSTER, rng=SeededRng(1))
    await own.put("password", b"hunter2")
    both = sealing.Keyring(b"n" * 32, (b"k" * 32,))
    writes = 0

    async def crash(verb: Verb, key: str) -> Fate:
        nonlocal writes
        writes += verb is Verb.REPLACE
        return Fate(error=storage.UnavailableError("crashed")) if writes > crash_at else Fate()

    half = safe(store.view(crash), both)
    if crash_at < 3:
        with pytest.raises(storage.UnavailableError):
            await rotation.rekey(half, PLACES)
    else:
        assert len(await rotation.rekey(half, PLACES)) == 3
    assert (await open_it(store, ring=both)).bundle == opened.bundle
    assert len(await rotation.rekey(safe(store, both), PLACES)) == 3 - crash_at
    assert await rotation.rekey(safe(store, both), PLACES) == []
    new = sealing.Keyring(b"n" * 32)
    assert (await open_it(store, ring=new)).publics == opened.publics
    moved = sealed.SealedStore(store, prefix="cluster/secret/", sealer=new, cluster=CLUSTER, rng=SeededRng(1))
    assert await moved.get("password") == b"hunter2"
    with pytest.raises(errors.UnreadableError, match="0 objects were sealed again"):
        await rotation.rekey(safe(store, sealing.Keyring(b"z" * 32)), PLACES)


OPENSSL = shutil.which("openssl")


def openssl(*arguments: str) -> str:
    done = subprocess.run([str(OPENSSL), *arguments], capture_output=True, text=True, timeout=30, check=False)
    return f"{done.stdout}{done.stderr}exit {done.returncode}"


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl program")
async def test_openssl_accepts_what_is_issued(tmp_path: Path) -> None:
    """With the certificates of the Netsy guide, and those of our own."""
    clock = TestClock()
    store = new_store()
    authority = await open_it(store)
    await rotation.rotate_ca(safe(store), PLACES, clock=clock)
    authority = await open_it(store)
    signer = authority.signer(clock.now)
    bundle = tmp_path / "ca.crt"
    bundle.write_text(authority.bundle)
    serial = ca.new_serial(SeededRng(30))
    end = clock.now + ca.SERVER_LIFE

    def netsy(usage: ca.Usage, **alternatives: tuple[str, ...]) -> ca.Issued:
        spec = ca.WorkloadSpec(
            usages=frozenset({usage}),
            subject=fields.Subject(cn=INSTANCE),
            alternatives=fields.Alternatives(uri=(f"netsy://my-cluster/peer/{INSTANCE}",), **alternatives),
        )
        return signer.issue_workload(spec, PUBLIC, serial=serial, issued=clock.now)

    server = names.Server(CLUSTER, SHARD, ServerId("srv-a"))
    agent = names.Agent(CLUSTER, TENANT, INSTANCE)
    issued = {
        "server": (
            authority.server_signer(clock.now).issue_server(
                server, PUBLIC, fields.Alternatives(ip=("10.0.0.1",)), serial=serial, issued=clock.now, expires=end
            ),
            {"sslserver", "sslclient"},
            [f"URI:{names.uri(server)}", "DNS:localhost", "IP Address:127.0.0.1", "IP Address:10.0.0.1"],
        ),
        "agent": (
            signer.issue_client(agent, PUBLIC, serial=serial, issued=clock.now, expires=end),
            {"sslclient"},
            [f"URI:{names.uri(agent)}", "1.3.6.1.4.1.999999.1", f"O = acme, CN = {INSTANCE}"],
        ),
        "netsy.server": (
            netsy(ca.Usage.SERVER, dns=("localhost", "node-1"), ip=("127.0.0.1", "::1", "10.0.0.7")),
            {"sslserver"},
            [f"URI:netsy://my-cluster/peer/{INSTANCE}", "DNS:node-1", "IP Address:0:0:0:0:0:0:0:1"],
        ),
        "netsy.peer": (netsy(ca.Usage.CLIENT), {"sslclient"}, [f"URI:netsy://my-cluster/peer/{INSTANCE}"]),
    }
    at = ("-attime", str(int(clock.now)), "-x509_strict", "-CAfile", str(bundle))
    for name, (certificate, purposes, expected) in issued.items():
        path = tmp_path / f"{name}.crt"
        path.write_text(certificate.pem)
        for purpose in ("sslserver", "sslclient"):
            answer = openssl("verify", *at, "-purpose", purpose, str(path))
            assert answer.endswith("exit 0") == (purpose in purposes), (name, purpose, answer)
        text = openssl("x509", "-in", str(path), "-noout", "-text")
        for part in ["ED25519", *expected]:
            assert part in text, (name, part, text)
    late = openssl("verify", "-attime", str(int(end) + 1), "-CAfile", str(bundle), str(tmp_path / "agent.crt"))
    assert "expired" in late
    stranger = await open_it(new_store(), seed=99)
    (tmp_path / "other.crt").write_text(stranger.bundle)
    other = openssl("verify", "-attime", at[1], "-CAfile", str(tmp_path / "other.crt"), str(tmp_path / "agent.crt"))
    assert not other.endswith("exit 0")
