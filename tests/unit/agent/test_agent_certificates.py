"""The agent's own reader of certificates says what the library's reader says, for good and for damaged ones."""

import contextlib
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from nstance.agent.credentials import certificates
from nstance.clock import SystemRng
from nstance.model.ids import ClusterId, InstanceId, OperatorId, ServerId, ShardId, TenantId
from nstance.pki import ca, fields, keys, names, peer

CHANCE = SystemRng()
NOW = datetime(2026, 11, 15, tzinfo=UTC).timestamp()
CA = ca.new_ca(ClusterId("c1"), now=NOW, rng=CHANCE)
PUBLIC = keys.public_bytes(keys.generate(CHANCE))
UUID = "01jw51srryegh9snf9cmeh3k4q"
SERVER = names.Server(ClusterId("c1"), ShardId("s1"), ServerId("srv-1"))
AGENT = names.Agent(ClusterId("c1"), TenantId("default"), InstanceId(f"etc-{UUID}"))
OPERATOR = names.Operator(ClusterId("c1"), TenantId("default"), OperatorId(f"opr-{UUID}"))


def _der(issued: ca.Issued) -> bytes:
    return ssl.PEM_cert_to_DER_cert(issued.pem)


SERVER_DER = _der(
    CA.issue_server(
        SERVER,
        PUBLIC,
        fields.Alternatives(dns=("a.example",), ip=("10.0.0.1",)),
        serial=5,
        issued=NOW,
        expires=NOW + 9e6,
    )
)
AGENT_DER = _der(CA.issue_client(AGENT, PUBLIC, serial=1 << 127, issued=NOW, expires=NOW + 9e6))
OPERATOR_DER = _der(CA.issue_client(OPERATOR, PUBLIC, serial=7, issued=NOW, expires=NOW + 3e9))
WORKLOAD_DER = _der(
    CA.issue_workload(
        ca.WorkloadSpec(usages=frozenset(ca.Usage), subject=fields.Subject(cn="srv-1", organization=("s1",))),
        PUBLIC,
        serial=9,
        issued=NOW,
    )
)
CA_DER = ssl.PEM_cert_to_DER_cert(CA.pem)
ALL = [SERVER_DER, AGENT_DER, OPERATOR_DER, WORKLOAD_DER, CA_DER]


@pytest.mark.parametrize(("der", "who"), [(SERVER_DER, SERVER), (AGENT_DER, AGENT), (OPERATOR_DER, OPERATOR)])
def test_identifies_whom_the_library_identifies(der: bytes, who: names.Identity) -> None:
    assert certificates.identify(der) == peer.identify(der) == who


@pytest.mark.parametrize("der", [WORKLOAD_DER, CA_DER, b"", b"0" * 20_000, AGENT_DER + b"\0", AGENT_DER[:-1]])
def test_refuses_whom_the_library_refuses(der: bytes) -> None:
    for read in (certificates.identify, peer.identify):
        with pytest.raises(names.IdentityError):
            read(der)


@pytest.mark.parametrize("der", ALL)
def test_reads_serial_and_dates_as_the_library_does(der: bytes) -> None:
    mine, theirs = certificates.read(der), x509.load_der_x509_certificate(der)
    assert mine.serial == theirs.serial_number
    assert mine.not_before == theirs.not_valid_before_utc.timestamp()
    assert mine.not_after == theirs.not_valid_after_utc.timestamp()


def _forged(
    *,
    uris: Sequence[str] = (names.uri(SERVER),),
    common_name: str = "srv-1",
    organization: str = "s1",
    role: str | None = "server",
    is_ca: bool = False,
    purposes: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH),
) -> bytes:
    """Signed by the right CA, which would never sign it: only what we read can tell."""
    subject = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name),
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, organization),
        ]
    )
    start = datetime.fromtimestamp(NOW, UTC)
    key = Ed25519PublicKey.from_public_bytes(PUBLIC)
    builder = x509.CertificateBuilder(CA.certificate.subject, subject, key, 5, start, start + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    if uris:
        alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(alternatives, critical=False)
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if role is not None:
        value = bytes([0x0C, len(role)]) + role.encode()
        builder = builder.add_extension(x509.UnrecognizedExtension(ca.ROLE_EXTENSION, value), critical=False)
    return builder.sign(CA.key, None).public_bytes(serialization.Encoding.DER)


def test_the_forger_can_make_a_right_one_too() -> None:
    """Else the refusals below would prove nothing."""
    assert certificates.identify(_forged()) == peer.identify(_forged()) == SERVER


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"role": "agent"}, id="the role of an agent"),
        pytest.param({"role": None}, id="no role, as a workload's"),
        pytest.param({"is_ca": True}, id="a CA"),
        pytest.param({"purposes": [ExtendedKeyUsageOID.SERVER_AUTH]}, id="not for clients"),
        pytest.param({"purposes": []}, id="no purposes"),
        pytest.param({"uris": []}, id="no URI"),
        pytest.param({"uris": [names.uri(SERVER), names.uri(AGENT)]}, id="two URIs"),
        pytest.param({"uris": ["https://c1/server/s1/srv-1"]}, id="not our URI"),
        pytest.param({"common_name": "srv-2"}, id="another name"),
        pytest.param({"organization": "s2"}, id="another shard"),
    ],
)
def test_each_thing_that_is_wrong_is_enough_to_refuse(wrong: dict[str, Any]) -> None:
    for read in (certificates.identify, peer.identify):
        with pytest.raises(names.IdentityError):
            read(_forged(**wrong))


def _changed(der: bytes, position: int, byte: int) -> bytes:
    return der[: position % len(der)] + bytes([byte]) + der[position % len(der) + 1 :]


@given(st.sampled_from(ALL), st.integers(0, 2000), st.integers(0, 255))
def test_a_changed_byte_never_makes_it_trust_more_than_the_library(der: bytes, position: int, byte: int) -> None:
    damaged = _changed(der, position, byte)
    try:
        mine = certificates.identify(damaged)
    except names.IdentityError:
        return
    try:
        assert mine == peer.identify(damaged)
    except names.IdentityError:
        # It refuses more: what OpenSSL has checked before we are asked (algorithms, keys, the signature's shape).
        assert mine == peer.identify(der), "but nobody becomes somebody else"


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (certificates.read, certificates.leaf, certificates.pem_blocks, certificates.identify):
        with contextlib.suppress(ValueError):
            read(data)


def test_other_people_s_certificates_can_be_read_too() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Grüße")])
    start, end = datetime(1999, 1, 1, tzinfo=UTC), datetime(2060, 1, 1, tzinfo=UTC)
    from cryptography.hazmat.primitives import hashes

    made = x509.CertificateBuilder(name, name, key.public_key(), 3, start, end).sign(key, hashes.SHA256())
    _, read = certificates.leaf(b"# a comment\n" + made.public_bytes(serialization.Encoding.PEM))
    assert (read.not_before, read.not_after) == (start.timestamp(), end.timestamp())
    assert read.extensions == {}


PEM = CA.pem.encode()


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (PEM, ["CERTIFICATE"]),
        (PEM + PEM, ["CERTIFICATE", "CERTIFICATE"]),
        (PEM.replace(b"\n", b"\r\n"), ["CERTIFICATE"]),
        (b"# a - comment -- with dashes\n" + PEM + b"-----", ["CERTIFICATE"]),
        (b"-----BEGIN KEY 1-----\nDEK-Info: AES-128-CBC,00\n\nAA==\n-----END KEY 1-----", ["KEY 1"]),
        (b"", []),
    ],
)
def test_pem_blocks_are_found(text: bytes, labels: list[str]) -> None:
    assert [label for label, _ in certificates.pem_blocks(text)] == labels


@pytest.mark.parametrize(
    "text",
    [
        PEM[:-10],
        PEM.replace(b"END CERT", b"END EC CERT"),
        PEM.replace(b"-----END", b"------END"),
        PEM.replace(b"BEGIN CERTIFICATE-----\n", b"BEGIN CERTIFICATE-----"),
        PEM.replace(b"CERTIFICATE", b"certificate"),
        PEM[:60] + PEM,
        b"-----BEGIN " * 90_000,
        b"-----BEGIN A-----\n" * 50_000,
    ],
    ids=range(8),
)
def test_damaged_pem_blocks_are_refused(text: bytes) -> None:
    with pytest.raises(certificates.MalformedError):
        certificates.pem_blocks(text)
