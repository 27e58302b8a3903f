"""Nonces: the tables of bad tokens, and that no change to a good one goes unnoticed."""

import base64
import dataclasses
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from nstance.model.ids import ClusterId, GroupName, InstanceId, ShardId, TenantId
from nstance.pki import keys, nonce, proof

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = keys.public_bytes(KEY)
KID = nonce.key_id(PUBLIC)
NOW = 1_800_000_000
CLUSTER = ClusterId("prod")
SHARD = ShardId("dev-1")
AGENT = nonce.AgentClaims(
    jti="0123456789abcdef0123456789abcdef",
    cluster=CLUSTER,
    tenant=TenantId("default"),
    instance=InstanceId("etc-01jw51srryegh9snf9cmeh3k4q"),
    shard=SHARD,
    group=GroupName("netsy"),
    on_demand=False,
    config_hash="abc123",
    issued=NOW,
    expires=NOW + 300,
)
OPERATOR = nonce.OperatorClaims(
    jti=AGENT.jti, cluster=CLUSTER, tenant=TenantId("default"), issued=NOW, expires=NOW + nonce.OPERATOR_LIFE
)
HEADER = {"alg": "EdDSA", "typ": "JWT", "kid": KID}
CLAIMS: dict[str, Any] = {
    "jti": AGENT.jti,
    "iss": "nstance-server",
    "sub": AGENT.instance,
    "kind": "agent",
    "cluster_id": "prod",
    "tenant": "default",
    "iat": NOW,
    "nbf": NOW,
    "exp": NOW + 300,
    "shard": "dev-1",
    "group": "netsy",
    "on_demand": False,
    "config_hash": "abc123",
}


def encode(data: bytes | dict[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forge(header: Any = HEADER, claims: Any = CLAIMS, key: Ed25519PrivateKey = KEY) -> str:
    """Rightly signed, whatever it says."""
    signed = f"{encode(header)}.{encode(claims)}"
    return f"{signed}.{encode(key.sign(signed.encode()))}"


def verify(token: str, now: float = NOW) -> nonce.AgentClaims:
    return nonce.verify_agent(token, keys={KID: PUBLIC}, now=now, cluster=CLUSTER, shard=SHARD)


TOKEN = nonce.sign(AGENT, KEY, KID)


def test_round_trip_and_determinism() -> None:
    assert verify(TOKEN) == AGENT
    assert nonce.sign(AGENT, KEY, KID) == TOKEN == forge()
    token = nonce.sign(OPERATOR, KEY, KID)
    assert nonce.verify_operator(token, keys={KID: PUBLIC}, now=NOW, cluster=CLUSTER) == OPERATOR


def test_both_keys_of_the_set_are_accepted() -> None:
    other = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    kid = nonce.key_id(keys.public_bytes(other))
    both = {kid: keys.public_bytes(other), KID: PUBLIC}
    for token in (TOKEN, nonce.sign(AGENT, other, kid)):
        assert nonce.verify_agent(token, keys=both, now=NOW, cluster=CLUSTER, shard=SHARD) == AGENT
    with pytest.raises(nonce.UnknownKeyError):
        verify(nonce.sign(AGENT, other, kid))
    with pytest.raises(nonce.InvalidNonceError):
        verify(nonce.sign(AGENT, other, KID))


@pytest.mark.parametrize(
    "header",
    [
        *({**HEADER, "alg": alg} for alg in ("none", "None", "nOnE", "HS256", "ES256", "", None, "eddsa")),
        {"typ": "JWT", "alg": "EdDSA", "kid": KID},
        {**HEADER, "kid": "0" * 16},
        {**HEADER, "jwk": {}},
        {"alg": "EdDSA", "typ": "JWT"},
        {},
    ],
)
def test_only_one_header_is_accepted(header: dict[str, Any]) -> None:
    with pytest.raises(nonce.UnknownKeyError):
        verify(forge(header))


def test_no_signature() -> None:
    head, body, _ = TOKEN.split(".")
    for token in (f"{head}.{body}.", f"{head}.{body}", f"{encode({'alg': 'none'})}.{body}."):
        with pytest.raises(nonce.InvalidNonceError):
            verify(token)


@pytest.mark.parametrize("secret", [PUBLIC, keys.public_to_pem(PUBLIC).encode()])
def test_hmac_with_the_public_key(secret: bytes) -> None:
    for header in (HEADER, {**HEADER, "alg": "HS256"}):
        signed = f"{encode(header)}.{encode(CLAIMS)}"
        token = f"{signed}.{encode(hmac.digest(secret, signed.encode(), hashlib.sha256))}"
        with pytest.raises(nonce.InvalidNonceError):
            verify(token)


def test_other_spellings_of_the_same_bytes() -> None:
    head, body, tail = TOKEN.split(".")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = tail[:-1] + last[last.index(tail[-1]) + 1]
    assert base64.urlsafe_b64decode(spare + "==") == base64.urlsafe_b64decode(tail + "==")
    for token in (
        f"{head}.{body}.{spare}",
        f"{head}.{body}.{tail}==",
        f"{head}.{body}.{tail}=",
        f"{head}.{body}. {tail}",
        f"{head}.{body}.{tail}\n",
        f" {TOKEN}",
        f"{head}.{body}.{tail[:10]}\n{tail[10:]}",
        f"{head}.{body}.{tail[:10]}!{tail[10:]}",
        f"{head}.{body}.{tail}.",
        f"{head}..{tail}",
        TOKEN.replace("1", "\u0661"),
        TOKEN.replace("-", "+").replace("_", "/") + "+",
        TOKEN + "A" * nonce.MAX_TOKEN,
    ):
        with pytest.raises(nonce.InvalidNonceError):
            verify(token)


def test_second_spelling_of_the_signature() -> None:
    head, body, tail = TOKEN.split(".")
    raw = base64.urlsafe_b64decode(tail + "==")
    order = 2**252 + 27742317777372353535851937790883648493
    second = raw[:32] + (int.from_bytes(raw[32:], "little") + order).to_bytes(32, "little")
    with pytest.raises(nonce.InvalidNonceError):
        verify(f"{head}.{body}.{encode(second)}")


@pytest.mark.parametrize("now", [NOW - 60, NOW, NOW + 300, NOW + 359.9])
def test_times_within_the_leeway(now: float) -> None:
    assert verify(TOKEN, now) == AGENT


@pytest.mark.parametrize("now", [NOW - 60.1, NOW + 360, 0, -1, float("inf"), float("nan")])
def test_times_beyond_the_leeway(now: float) -> None:
    with pytest.raises(nonce.InvalidNonceError):
        verify(TOKEN, now)


WRONG = [
    *({**CLAIMS, "exp": value} for value in ("1800000300", 1e308, NOW + 300.0, -1, None, True, NOW - 1, 10**30, [])),
    *({**CLAIMS, "iat": value} for value in (str(NOW), 0, True, None)),
    *({**CLAIMS, "nbf": value} for value in (NOW - 1, NOW + 1, None, float(NOW))),
    *({name: value for name, value in CLAIMS.items() if name != gone} for gone in CLAIMS),
    *({**CLAIMS, "jti": value} for value in ("", "A" * 32, "0" * 31, "0" * 33, 5, "../../../etc/passwd0000000000000")),
    *({**CLAIMS, "sub": value} for value in ("", "opr-01jw51srryegh9snf9cmeh3k4q", "etc-1", None, {}, "prod")),
    *({**CLAIMS, "tenant": value} for value in ("", "a--b", "dеfault", "../x", 1, ["default"])),
    *({**CLAIMS, "on_demand": value} for value in (0, 1, "false", None)),
    *({**CLAIMS, "config_hash": value} for value in (None, "a b", "x" * 129)),
    {**CLAIMS, "iss": "somebody"},
    {**CLAIMS, "kind": "operator"},
    {**CLAIMS, "kind": "Agent"},
    {**CLAIMS, "kind": ["agent"]},
    {**CLAIMS, "admin": True},
    dict(reversed(CLAIMS.items())),
]


@pytest.mark.parametrize("claims", WRONG)
def test_wrong_claims_are_refused_although_signed(claims: dict[str, Any]) -> None:
    with pytest.raises(nonce.InvalidNonceError):
        verify(forge(claims=claims))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"{}",
        b"\xff\xfe",
        b"[" * 1000,
        b"NaN",
        b" " + json.dumps(CLAIMS).encode(),
    ],
)
def test_unreadable_claims(payload: bytes) -> None:
    with pytest.raises(nonce.InvalidNonceError):
        verify(forge(claims=payload))


def test_doubled_claims_are_refused() -> None:
    payload = json.dumps(CLAIMS, separators=(",", ":")).replace('"tenant":', '"tenant":"other","tenant":').encode()
    with pytest.raises(nonce.InvalidNonceError):
        verify(forge(claims=payload))


@pytest.mark.parametrize(
    "claims",
    [
        dataclasses.replace(AGENT, cluster=ClusterId("other")),
        dataclasses.replace(AGENT, shard=ShardId("dev-2")),
        OPERATOR,
    ],
)
def test_nonces_for_somebody_else(claims: nonce.Claims) -> None:
    with pytest.raises(nonce.InvalidNonceError) as caught:
        verify(nonce.sign(claims, KEY, KID))
    assert str(caught.value) == "invalid registration nonce"


def test_an_agents_nonce_registers_no_operator() -> None:
    with pytest.raises(nonce.InvalidNonceError) as caught:
        nonce.verify_operator(TOKEN, keys={KID: PUBLIC}, now=NOW, cluster=CLUSTER)
    assert str(caught.value) == "invalid registration nonce"
    other = nonce.sign(dataclasses.replace(OPERATOR, cluster=ClusterId("other")), KEY, KID)
    with pytest.raises(nonce.InvalidNonceError):
        nonce.verify_operator(other, keys={KID: PUBLIC}, now=NOW, cluster=CLUSTER)


def test_claims_are_not_read_before_the_signature_is_checked() -> None:
    """Good and bad claims under a wrong signature cannot be told apart."""
    stranger = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
    reasons = set()
    for claims in (CLAIMS, {**CLAIMS, "tenant": "other"}, {**CLAIMS, "exp": 1}, b"no json"):
        with pytest.raises(nonce.InvalidNonceError) as caught:
            verify(forge(claims=claims, key=stranger))
        reasons.add(caught.value.reason)
    assert len(reasons) == 1


@given(st.integers(0, len(TOKEN) - 1), st.characters())
def test_a_changed_token_never_verifies(position: int, letter: str) -> None:
    changed = TOKEN[:position] + letter + TOKEN[position + 1 :]
    if changed == TOKEN:
        return
    with pytest.raises(nonce.InvalidNonceError):
        verify(changed)


@given(st.integers(0, len(TOKEN)), st.text(min_size=1, max_size=5))
def test_an_extended_token_never_verifies(position: int, extra: str) -> None:
    with pytest.raises(nonce.InvalidNonceError):
        verify(TOKEN[:position] + extra + TOKEN[position:])


@given(st.integers(0, len(TOKEN) - 1))
def test_a_shortened_token_never_verifies(length: int) -> None:
    with pytest.raises(nonce.InvalidNonceError):
        verify(TOKEN[:length])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(CLAIMS)), JSON)
def test_a_signed_claim_of_any_shape_is_refused_or_right(name: str, value: object) -> None:
    claims = {**CLAIMS, name: value}
    try:
        assert verify(forge(claims=claims)) is not None
    except nonce.InvalidNonceError:
        return
    assert name in {"jti", "tenant", "iat", "exp", "group", "config_hash", "on_demand"} or claims == CLAIMS
    assert type(value) is type(CLAIMS[name])


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda b: forge(claims=b or b"x")))
def test_no_input_breaks_the_reader(token: str) -> None:
    with pytest.raises(nonce.InvalidNonceError):
        verify(token)


def test_only_claims_that_would_verify_are_signed() -> None:
    with pytest.raises(nonce.InvalidNonceError):
        nonce.sign(dataclasses.replace(AGENT, tenant=TenantId("No")), KEY, KID)


def test_proof_of_possession() -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
    public = keys.public_bytes(key)
    good = proof.prove_registration(key, cluster=CLUSTER, nonce=TOKEN)
    assert key.sign(b"nstance-register-v1\0prod\0" + TOKEN.encode()) == good
    proof.check_registration(good, public_key=public, cluster=CLUSTER, nonce=TOKEN)
    for bad, owner, cluster, token in (
        (b"", public, CLUSTER, TOKEN),
        (bytes(64), public, CLUSTER, TOKEN),
        (good + b"x", public, CLUSTER, TOKEN),
        (good, PUBLIC, CLUSTER, TOKEN),
        (good, public, ClusterId("other"), TOKEN),
        (good, public, CLUSTER, TOKEN + "x"),
        (good, public, CLUSTER, TOKEN + "\0"),
        (proof.prove_renewal(key, cluster=CLUSTER, id=TOKEN), public, CLUSTER, TOKEN),
    ):
        with pytest.raises(proof.InvalidProofError):
            proof.check_registration(bad, public_key=owner, cluster=cluster, nonce=token)


def test_proof_for_renewal() -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
    public = keys.public_bytes(key)
    good = proof.prove_renewal(key, cluster=CLUSTER, id=AGENT.instance)
    assert key.sign(b"nstance-renew-v1\0prod\0" + AGENT.instance.encode()) == good
    proof.check_renewal(good, public_key=public, cluster=CLUSTER, id=AGENT.instance)
    with pytest.raises(proof.InvalidProofError):
        proof.check_renewal(good, public_key=public, cluster=CLUSTER, id="etc-01jw51srryegh9snf9cmeh3k4r")
    registration = proof.prove_registration(key, cluster=CLUSTER, nonce=AGENT.instance)
    with pytest.raises(proof.InvalidProofError):
        proof.check_renewal(registration, public_key=public, cluster=CLUSTER, id=AGENT.instance)
