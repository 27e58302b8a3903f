"""What is issued, and who it is taken for."""

import dataclasses
import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import example, given
from hypothesis import strategies as st

from nstance.model.ids import ClusterId, InstanceId, OperatorId, ServerId, ShardId, TenantId
from nstance.pki import ca, fields, keys, names, peer
from nstance.sim.rng import SeededRng

NOW = 1_800_000_000.75
CHANCE = SeededRng(1)
CLUSTER = ClusterId("prod")
CA = ca.new_ca(CLUSTER, now=NOW, rng=CHANCE)
KEY = keys.generate(CHANCE)
PUBLIC = keys.public_bytes(KEY)
SERVER = names.Server(CLUSTER, ShardId("dev-1"), ServerId("srv-a"))
AGENT = names.Agent(CLUSTER, TenantId("acme"), InstanceId("etc-01jw51srryegh9snf9cmeh3k4q"))
OPERATOR = names.Operator(CLUSTER, TenantId("acme"), OperatorId("opr-01jw51srryegh9snf9cmeh3k4q"))
SERIAL = ca.new_serial(CHANCE)


def load(issued: ca.Issued) -> x509.Certificate:
    return ca.load_certificate(issued.pem)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def agent(expires: float = NOW + ca.SERVER_LIFE) -> ca.Issued:
    return CA.issue_client(AGENT, PUBLIC, serial=SERIAL, issued=NOW, expires=expires)


def server() -> ca.Issued:
    return CA.issue_server(
        SERVER,
        PUBLIC,
        fields.Alternatives(dns=("a.example",), ip=("10.0.0.1", "127.0.0.1")),
        serial=SERIAL,
        issued=NOW,
        expires=NOW + ca.SERVER_LIFE,
    )


def operator() -> ca.Issued:
    return CA.issue_client(OPERATOR, PUBLIC, serial=SERIAL, issued=NOW, expires=NOW + ca.OPERATOR_LIFE)


def workload(**changes: object) -> ca.Issued:
    subject = {k: v for k, v in changes.items() if k in fields.Subject.__dataclass_fields__}
    alternatives = {k: v for k, v in changes.items() if k in fields.Alternatives.__dataclass_fields__}
    spec = ca.WorkloadSpec(
        usages=changes.get("usages", frozenset({ca.Usage.SERVER})),  # type: ignore[arg-type]
        subject=fields.Subject(**{"cn": "node", **subject}),  # type: ignore[arg-type]
        alternatives=fields.Alternatives(**alternatives),  # type: ignore[arg-type]
        life=changes.get("life", ca.WORKLOAD_LIFE),  # type: ignore[arg-type]
    )
    return CA.issue_workload(spec, PUBLIC, serial=SERIAL, issued=NOW)


def purposes(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def alternatives(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_the_ca_says_whose_it_is_and_lives_ten_years() -> None:
    assert CA.cluster == CLUSTER
    assert CA.certificate.not_valid_after_utc.timestamp() == int(NOW + 3650 * 86400)
    constraints = CA.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value.ca
    again = ca.load_ca(CA.pem, keys.private_to_pem(CA.key))
    assert again.certificate == CA.certificate
    assert "PrivateKey" not in repr(CA)


def test_the_ca_subject_can_be_shaped() -> None:
    subject = fields.Subject(cn="Root", organization=("Acme",), country=("DE",))
    made = ca.new_ca(CLUSTER, now=NOW, rng=CHANCE, subject=subject, life=86400)
    assert made.certificate.subject.rfc4514_string() == "CN=Root,O=Acme,C=DE"
    with pytest.raises(fields.CertificateError, match="cn"):
        ca.new_ca(CLUSTER, now=NOW, rng=CHANCE, subject=fields.Subject())


def test_a_ca_of_two_halves_is_refused() -> None:
    other = ca.new_ca(CLUSTER, now=NOW, rng=CHANCE)
    with pytest.raises(fields.CertificateError, match="do not fit each other"):
        ca.load_ca(CA.pem, keys.private_to_pem(other.key))


def test_agent_certificate() -> None:
    certificate = load(agent())
    certificate.verify_directly_issued_by(CA.certificate)
    assert certificate.subject.rfc4514_string() == f"CN={AGENT.id},O=acme"
    assert certificate.serial_number == SERIAL
    assert purposes(certificate) == {ExtendedKeyUsageOID.CLIENT_AUTH}
    assert list(alternatives(certificate)) == [x509.UniformResourceIdentifier(f"nstance://prod/agent/acme/{AGENT.id}")]
    role = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier("1.3.6.1.4.1.999999.1")).value
    assert isinstance(role, x509.UnrecognizedExtension)
    assert role.value == b"\x0c\x05agent"
    assert peer.identify(der(certificate)) == AGENT


def test_operator_certificate_has_the_cluster_as_name() -> None:
    certificate = load(operator())
    assert certificate.subject.rfc4514_string() == "CN=prod,O=acme"
    assert purposes(certificate) == {ExtendedKeyUsageOID.CLIENT_AUTH}
    assert certificate.not_valid_after_utc.timestamp() == int(NOW + 365 * 86400)
    assert peer.identify(der(certificate)) == OPERATOR


def test_server_certificate() -> None:
    certificate = load(server())
    names_ = alternatives(certificate)
    assert purposes(certificate) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert names_.get_values_for_type(x509.DNSName) == ["localhost", "a.example"]
    assert names_.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "10.0.0.1")
    ]
    assert peer.identify(der(certificate)) == SERVER


def test_back_dating() -> None:
    assert load(server()).not_valid_before_utc.timestamp() == int(NOW) - 86400
    for issued in (agent(), operator(), workload()):
        assert load(issued).not_valid_before_utc.timestamp() == int(NOW) - 300


def test_the_same_arguments_give_the_same_bytes() -> None:
    again = ca.load_ca(CA.pem, keys.private_to_pem(CA.key))
    assert again.issue_client(AGENT, PUBLIC, serial=SERIAL, issued=NOW, expires=NOW + ca.SERVER_LIFE) == agent()


def test_nothing_outlives_the_ca() -> None:
    assert agent(NOW + 100 * 365 * 86400).expires == CA.expires
    with pytest.raises(fields.CertificateError, match="expiry"):
        CA.issue_client(AGENT, PUBLIC, serial=SERIAL, issued=CA.expires + 1000.0, expires=CA.expires + 2000.0)


def test_identities_of_another_cluster_are_refused() -> None:
    stranger = dataclasses.replace(AGENT, cluster=ClusterId("other"))
    with pytest.raises(fields.CertificateError, match="cluster"):
        CA.issue_client(stranger, PUBLIC, serial=SERIAL, issued=NOW, expires=NOW + 1)


def test_no_certificate_for_a_weak_key() -> None:
    with pytest.raises(keys.UnacceptableKeyError):
        CA.issue_client(AGENT, bytes(32), serial=SERIAL, issued=NOW, expires=NOW + 1000)


def test_serials_have_128_bits() -> None:
    serials = [ca.new_serial(CHANCE) for _ in range(200)]
    assert len(set(serials)) == 200
    assert 120 < max(serials).bit_length() <= 128
    assert agent().serial_hex == f"{SERIAL:032x}"


def test_workload_certificate_with_all_fields() -> None:
    certificate = load(
        workload(
            usages=frozenset(ca.Usage),
            cn="node-1",
            organization=("Acme", "Ops"),
            country=("DE",),
            province=("Berlin",),
            locality=("Mitte",),
            street=("Straße 1",),
            postal_code=("10115",),
            dns=("localhost", "", "node-1.example", "localhost", "*.example"),
            ip=("127.0.0.1", "::1", "", "0:0:0:0:0:0:0:1"),
            uri=("netsy://my-cluster/peer/node-1", ""),
            life=3600.0,
        )
    )
    certificate.verify_directly_issued_by(CA.certificate)
    values = [(attribute.rfc4514_attribute_name, attribute.value) for attribute in certificate.subject]
    assert values == [
        ("C", "DE"),
        ("ST", "Berlin"),
        ("L", "Mitte"),
        ("STREET", "Straße 1"),
        (NameOID.POSTAL_CODE.dotted_string, "10115"),
        ("O", "Acme"),
        ("O", "Ops"),
        ("CN", "node-1"),
    ]
    assert alternatives(certificate).get_values_for_type(x509.DNSName) == ["localhost", "node-1.example", "*.example"]
    assert alternatives(certificate).get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]
    assert alternatives(certificate).get_values_for_type(x509.UniformResourceIdentifier) == [
        "netsy://my-cluster/peer/node-1"
    ]
    assert purposes(certificate) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert certificate.not_valid_after_utc.timestamp() == int(NOW + 3600)
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_oid(ca.ROLE_EXTENSION)


@pytest.mark.parametrize(
    ("usage", "purpose"),
    [(ca.Usage.SERVER, ExtendedKeyUsageOID.SERVER_AUTH), (ca.Usage.CLIENT, ExtendedKeyUsageOID.CLIENT_AUTH)],
)
def test_workload_purposes(usage: ca.Usage, purpose: x509.ObjectIdentifier) -> None:
    certificate = load(workload(usages=frozenset({usage})))
    assert purposes(certificate) == {purpose}
    assert certificate.not_valid_after_utc.timestamp() == int(NOW + 8760 * 3600)


def test_a_workload_without_subject_has_a_critical_alternative_name() -> None:
    certificate = load(workload(cn="", dns=("a.example",)))
    assert certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("uri", {"uri": (f"nstance://prod/server/dev-1/{SERVER.id}",)}),
        ("uri", {"uri": ("NStance:anything",)}),
        ("uri", {"uri": ("no scheme",)}),
        ("uri", {"uri": ("a://b\n",)}),
        ("uri", {"uri": ("a://ü",)}),
        ("uri", {"uri": ("a://" + "b" * 3000,)}),
        ("uri", {"uri": ("<no value>",)}),
        ("dns", {"dns": ("10.0.0.1",)}),
        ("dns", {"dns": ("a..b",)}),
        ("dns", {"dns": ("a.b.",)}),
        ("dns", {"dns": ("-a",)}),
        ("dns", {"dns": ("a b",)}),
        ("dns", {"dns": ("a\0b",)}),
        ("dns", {"dns": ("ä.example",)}),
        ("dns", {"dns": ("a.*.example",)}),
        ("dns", {"dns": ("*",)}),
        ("dns", {"dns": ("a" * 64,)}),
        ("dns", {"dns": (".".join(["a" * 60] * 5),)}),
        ("dns", {"dns": ("a",) * 101}),
        ("ip", {"ip": ("10.0.0.256",)}),
        ("ip", {"ip": ("10.0.0.0/8",)}),
        ("ip", {"ip": ("fe80::1%eth0",)}),
        ("ip", {"ip": ("localhost",)}),
        ("ip", {"ip": (" 10.0.0.1",)}),
        ("cn", {"cn": "x" * 65}),
        ("cn", {"cn": "a\0b"}),
        ("cn", {"cn": ""}),
        ("organization", {"organization": ("",)}),
        ("organization", {"organization": ("a\nb",)}),
        ("organization", {"organization": ("a",) * 21}),
        ("country", {"country": ("Germany",)}),
        ("country", {"country": ("d1",)}),
        ("postalCode", {"postal_code": ("1" * 41,)}),
        ("ttl", {"life": 0.0}),
        ("ttl", {"life": -5.0}),
        ("ttl", {"life": float("nan")}),
        ("ttl", {"life": float("inf")}),
        ("kind", {"usages": frozenset()}),
    ],
)
def test_wrong_workload_values_name_their_field(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(fields.CertificateError, match=f"^{field}: "):
        workload(**changes)


@given(
    st.builds(
        fields.Alternatives,
        dns=st.lists(st.text(max_size=70), max_size=3).map(tuple),
        ip=st.lists(st.text(max_size=40), max_size=3).map(tuple),
        uri=st.lists(st.text(max_size=40), max_size=3).map(tuple),
    ),
    st.text(max_size=70),
    st.lists(st.text(max_size=70), max_size=3).map(tuple),
)
def test_any_workload_is_issued_or_refused_and_is_nobody(
    alternatives: fields.Alternatives, cn: str, organization: tuple[str, ...]
) -> None:
    subject = fields.Subject(cn=cn, organization=organization)
    spec = ca.WorkloadSpec(usages=frozenset(ca.Usage), subject=subject, alternatives=alternatives)
    try:
        issued = CA.issue_workload(spec, PUBLIC, serial=SERIAL, issued=NOW)
    except fields.CertificateError:
        return
    with pytest.raises(names.IdentityError):
        peer.identify(der(load(issued)))


URI = x509.UniformResourceIdentifier
GOOD: dict[str, object] = {
    "subject": [(NameOID.COMMON_NAME, AGENT.id), (NameOID.ORGANIZATION_NAME, "acme")],
    "san": [URI(names.uri(AGENT))],
    "role": b"\x0c\x05agent",
    "ca": False,
    "eku": [ExtendedKeyUsageOID.CLIENT_AUTH],
}


def craft(changes: dict[str, object]) -> bytes:
    """A certificate that TLS would let through, with words of our choice."""
    parts = {**GOOD, **changes}
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in parts["subject"]])  # type: ignore[attr-defined]
    start = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    builder = x509.CertificateBuilder(
        CA.certificate.subject, subject, KEY.public_key(), 7, start, start + datetime.timedelta(days=1)
    )
    if parts["ca"] is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=bool(parts["ca"]), path_length=None), critical=True)
    if parts["san"]:
        builder = builder.add_extension(x509.SubjectAlternativeName(parts["san"]), critical=False)  # type: ignore[arg-type]
    if parts["role"] is not None:
        role = x509.UnrecognizedExtension(ca.ROLE_EXTENSION, parts["role"])  # type: ignore[arg-type]
        builder = builder.add_extension(role, critical=False)
    if parts["eku"]:
        builder = builder.add_extension(x509.ExtendedKeyUsage(parts["eku"]), critical=False)  # type: ignore[arg-type]
    return der(builder.sign(CA.key, None))


def test_the_crafted_certificate_is_good_when_unchanged() -> None:
    assert peer.identify(craft({})) == AGENT


@pytest.mark.parametrize(
    "changes",
    [
        {"ca": True},
        {"ca": None},
        {"role": None},
        {"role": b"\x0c\x06server"},
        {"role": b"\x0c\x08operator"},
        {"role": b"\x13\x05agent"},
        {"role": b"agent"},
        {"role": b"\x0c\x05agent\x00"},
        {"role": b""},
        {"eku": [ExtendedKeyUsageOID.SERVER_AUTH]},
        {"eku": []},
        {"san": []},
        {"san": [x509.DNSName("agent")]},
        {"san": [URI(names.uri(AGENT)), URI(names.uri(SERVER))]},
        {"san": [URI(names.uri(AGENT)), URI("netsy://x")]},
        {"san": [URI(names.uri(AGENT)), x509.DNSName("x")]},
        {"san": [URI(names.uri(SERVER))]},
        {"san": [URI(names.uri(OPERATOR))]},
        {"san": [URI(names.uri(AGENT).replace("acme", "other"))]},
        {"san": [URI(names.uri(AGENT) + "/")]},
        {"san": [URI(names.uri(AGENT))] + [x509.DNSName(f"n{n}.example") for n in range(10_000)]},
        {"subject": []},
        {"subject": [(NameOID.COMMON_NAME, AGENT.id)]},
        {"subject": [(NameOID.ORGANIZATION_NAME, "acme")]},
        {"subject": [*GOOD["subject"], (NameOID.ORGANIZATION_NAME, "other")]},  # type: ignore[misc]
        {"subject": [*GOOD["subject"], (NameOID.ORGANIZATION_NAME, "acme")]},  # type: ignore[misc]
        {"subject": [*GOOD["subject"], (NameOID.LOCALITY_NAME, "x")]},  # type: ignore[misc]
        {"subject": [(NameOID.COMMON_NAME, AGENT.id), (NameOID.ORGANIZATION_NAME, "аcme")]},  # a Cyrillic letter
        {"subject": [(NameOID.COMMON_NAME, AGENT.id + "\0"), (NameOID.ORGANIZATION_NAME, "acme")]},
        {"subject": [(NameOID.COMMON_NAME, AGENT.id[:-1] + "r"), (NameOID.ORGANIZATION_NAME, "acme")]},
    ],
)
def test_certificates_that_are_nobody(changes: dict[str, object]) -> None:
    with pytest.raises(names.IdentityError):
        peer.identify(craft(changes))


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize("serial", [b"\x00", b"\x87"], ids=["zero", "negative"])
def test_a_serial_number_is_above_zero(serial: bytes) -> None:
    """No builder makes such a certificate; another CA's tool may. The signature is not judged here."""
    good = craft({})
    assert good.count(b"\x02\x01\x07") == 1
    with pytest.raises(names.IdentityError, match="serial number"):
        peer.identify(good.replace(b"\x02\x01\x07", b"\x02\x01" + serial))


@given(st.binary(max_size=500))
def test_no_input_breaks_identify(data: bytes) -> None:
    with pytest.raises(names.IdentityError):
        peer.identify(data)


AGENT_DER = craft({})


# The library warns of odd serial numbers and countries, and so it may.
@pytest.mark.filterwarnings("ignore:Parsed a serial number", "ignore:Attribute's length")
@given(st.integers(0, len(AGENT_DER) - 1), st.integers(1, 255))
@example(12, 1)  # no such version of X.509
def test_a_damaged_certificate_is_refused_or_names_a_sound_identity(position: int, flip: int) -> None:
    """The signature is not judged here, so another well-formed name may come out; a crash must not."""
    damaged = bytearray(AGENT_DER)
    damaged[position] ^= flip
    try:
        identity = peer.identify(bytes(damaged))
    except names.IdentityError:
        return
    assert names.parse_uri(names.uri(identity)) == identity


def test_keys_of_the_ca_stay_out_of_errors() -> None:
    with pytest.raises(keys.UnacceptableKeyError) as caught:
        ca.load_ca(CA.pem, keys.private_to_pem(Ed25519PrivateKey.from_private_bytes(b"x" * 32))[:-40])
    assert "PRIVATE" not in str(caught.value)
