"""Who somebody is: nonces, certificates, keys, and what the authority keeps of them."""

from contextlib import suppress

from fuzz.law import Broken, target
from nstance.agent.credentials import certificates, identity
from nstance.authority import errors, keyset, registration
from nstance.clock import Rng
from nstance.model.ids import ClusterId, ShardId
from nstance.objects.port import Key
from nstance.pki import ca, fields, keys, names, nonce, peer, proof
from nstance.secretstore import errors as secrets
from nstance.secretstore import sealing
from nstance.sim.rng import SeededRng

CLUSTER, SHARD = ClusterId("demo"), ShardId("east")
NOW = 1_750_000_000.0


def rng() -> Rng:
    return SeededRng("fuzz")


@target("nonce", nonce.InvalidNonceError, words=(b".", b"=", b"==", b"eyJhbGciOiJub25lIn0", b"-_", b"+/", b" "))
def registration_nonce(data: bytes) -> None:
    token = data.decode("utf-8", "replace")
    with suppress(ValueError):  # as `identity` expects it
        identity._claims(token)
    with suppress(nonce.InvalidNonceError):
        nonce.unverified(token)
    key = keys.generate(rng())
    public = keys.public_bytes(key)
    known = {nonce.key_id(public): public}
    claims: nonce.Claims
    try:
        claims = nonce.verify_operator(token, keys=known, now=NOW, cluster=CLUSTER)
    except nonce.InvalidNonceError:
        claims = nonce.verify_agent(token, keys=known, now=NOW, cluster=CLUSTER, shard=SHARD)
    if nonce.sign(claims, key, nonce.key_id(public)) != token:
        raise Broken("a token that we would not have made was accepted")


@target(
    "certificate",
    names.IdentityError,
    words=(b"\x30\x82", b"\x0c", b"\x86", b"\x01\x01\xff", b"\x80", b"\x84\xff\xff\xff\xff"),
)
def certificate(data: bytes) -> None:
    """The server's judge and the agent's may not take one certificate for two identities."""
    try:
        mine: names.Identity | None = certificates.identify(data)
    except names.IdentityError:
        mine = None
    theirs = peer.identify(data)
    if mine is not None and mine != theirs:
        raise Broken(f"one certificate, two identities: {mine} and {theirs}")


PEM = (
    b"-----BEGIN CERTIFICATE-----\n",
    b"-----END CERTIFICATE-----\n",
    b"-----BEGIN PRIVATE KEY-----\n",
    b"PUBLIC KEY",
    b"\n\n",
)


@target("pem", keys.UnacceptableKeyError, words=PEM)
def pem(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with suppress(certificates.MalformedError):
        certificates.leaf(data)
    with suppress(fields.CertificateError):
        ca.cluster_of(ca.load_certificate(text))
    with suppress(keys.UnacceptableKeyError):
        keys.private_key_from_pem(text)
    public = keys.public_key_from_pem(text)
    try:
        proof.check_registration(data[:64], public_key=public, cluster=CLUSTER, nonce="x")
    except proof.InvalidProofError:
        return
    raise Broken("a proof that nobody made was accepted")


RECORDS = (
    b'"v"',
    b'"cluster"',
    b'"cas"',
    b'"keys"',
    b'"signs_from"',
    b'"serial"',
    b'"public_key"',
    b'"revoked"',
    b'"demo"',
)


@target("authority", errors.AuthorityError, words=RECORDS)
def authority(data: bytes) -> None:
    """What is sealed in storage: CAs, nonce keys, registrations."""
    with suppress(errors.AuthorityError):
        keyset.load_cas(data, cluster=CLUSTER, name="cas")
        return
    with suppress(errors.AuthorityError):
        keyset.load_nonce_keys(data, cluster=CLUSTER, name="keys")
        return
    registration.dump(registration.load(data, key=Key("operator"), cluster=CLUSTER))


@target("sealed", secrets.DecryptionError, secrets.BadKeyError, words=(b"NSTC", b"\x01", b"\x00"))
def sealed(data: bytes) -> None:
    ring = sealing.Keyring(current=b"k" * 32, old=(b"o" * 32,))
    with suppress(secrets.BadKeyError):
        sealing.parse_key(data)
        sealing.parse_key(data.decode("utf-8", "surrogateescape"))
    ring.is_current(data)
    ring.open(data, cluster=CLUSTER, name="secret")
