"""The certificate authority: what it signs, and for how long.

Identity certificates (server, agent, operator) carry an `nstance://` URI and a role; workload certificates never do, so
none of them can be taken for a server. Serial and times are arguments: Ed25519 signs deterministically, so the same
arguments give the same bytes again, and a client whose first answer was lost gets the certificate it already owns.
"""

import datetime
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from nstance.clock import Rng
from nstance.model.ids import ClusterId
from nstance.pki import fields, keys, names
from nstance.pki.fields import CertificateError

ROLE_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.999999.1")

DAY = 86400.0
CA_LIFE = 3650 * DAY
SERVER_LIFE = 30 * DAY
OPERATOR_LIFE = 365 * DAY
WORKLOAD_LIFE = 365 * DAY

# How far clocks of those who check may be behind: agents reach the server before their clock is set.
SERVER_BACKDATE = DAY
CLIENT_BACKDATE = 300.0

# What the library raises for certificates that are none. TypeError: for a name attribute of an unfit type.
UNREADABLE = (ValueError, TypeError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)

UTF8_STRING = 0x0C
_LONGEST = 100 * 365 * DAY


class Usage(Enum):
    SERVER = "server"
    CLIENT = "client"


_PURPOSES = {Usage.SERVER: ExtendedKeyUsageOID.SERVER_AUTH, Usage.CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A certificate template with everything rendered."""

    usages: frozenset[Usage]
    subject: fields.Subject = field(default_factory=fields.Subject)
    alternatives: fields.Alternatives = field(default_factory=fields.Alternatives)
    life: float = WORKLOAD_LIFE


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    pem: str
    serial: int
    expires: int  # seconds since 1970
    key_fingerprint: str

    @property
    def serial_hex(self) -> str:
        return f"{self.serial:032x}"


def new_serial(rng: Rng) -> int:
    return rng.bits(128) or 1  # zero is no serial number


@dataclass(frozen=True)
class CertificateAuthority:
    certificate: x509.Certificate
    key: Ed25519PrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        try:
            belong = self.certificate.public_key() == self.key.public_key()
        except (ValueError, UnsupportedAlgorithm):
            belong = False
        if not belong:
            raise CertificateError("the CA's key and certificate do not belong together")

    @functools.cached_property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode("ascii")

    @functools.cached_property
    def cluster(self) -> ClusterId:
        return cluster_of(self.certificate)

    @functools.cached_property
    def expires(self) -> int:
        return int(self.certificate.not_valid_after_utc.timestamp())

    @functools.cached_property
    def _authority_key_id(self) -> x509.AuthorityKeyIdentifier:
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)

    def issue_server(
        self,
        identity: names.Server,
        public_key: bytes,
        *,
        dns: Sequence[str],
        ip: Sequence[str],
        serial: int,
        issued: float,
        expires: float,
    ) -> Issued:
        """`dns` and `ip`: what it advertises; the loopback names are added."""
        alternatives = fields.Alternatives(dns=("localhost", *dns), ip=("127.0.0.1", "::1", *ip))
        usages = frozenset(Usage)
        return self._identity(
            identity, public_key, alternatives, usages, serial, math.floor(issued - SERVER_BACKDATE), expires
        )

    def issue_agent(
        self, identity: names.Agent, public_key: bytes, *, serial: int, issued: float, expires: float
    ) -> Issued:
        return self._client(identity, public_key, serial, issued, expires)

    def issue_operator(
        self, identity: names.Operator, public_key: bytes, *, serial: int, issued: float, expires: float
    ) -> Issued:
        return self._client(identity, public_key, serial, issued, expires)

    def issue_workload(self, spec: WorkloadSpec, public_key: bytes, *, serial: int, issued: float) -> Issued:
        if not spec.usages:
            raise CertificateError("kind: expected server, client or both")
        if not 1 <= spec.life <= _LONGEST:  # also refuses NaN
            raise CertificateError(f"ttl: expected between a second and 100 years, found {spec.life} s")
        subject = spec.subject.name()
        alternatives = spec.alternatives.general_names()
        if not subject.rdns and not alternatives:
            raise CertificateError("cn: the certificate names nobody; give a cn, dns, ip or uri")
        start = math.floor(issued - CLIENT_BACKDATE)
        return self._sign(subject, alternatives, public_key, spec.usages, None, serial, start, issued + spec.life)

    def _client(
        self, identity: names.Agent | names.Operator, public_key: bytes, serial: int, issued: float, expires: float
    ) -> Issued:
        start = math.floor(issued - CLIENT_BACKDATE)
        usages = frozenset({Usage.CLIENT})
        return self._identity(identity, public_key, fields.Alternatives(), usages, serial, start, expires)

    def _identity(
        self,
        identity: names.Identity,
        public_key: bytes,
        alternatives: fields.Alternatives,
        usages: frozenset[Usage],
        serial: int,
        start: int,
        expires: float,
    ) -> Issued:
        if identity.cluster != self.cluster:
            raise CertificateError(f"expected an identity of cluster {self.cluster}, found {identity.cluster}")
        subject = fields.Subject(cn=names.common_name(identity), organization=(names.organization(identity),))
        own = x509.UniformResourceIdentifier(names.uri(identity))
        everything = [own, *alternatives.general_names()]
        return self._sign(subject.name(), everything, public_key, usages, names.role(identity), serial, start, expires)

    def _sign(
        self,
        subject: x509.Name,
        alternatives: Sequence[x509.GeneralName],
        public_key: bytes,
        usages: frozenset[Usage],
        role: names.Role | None,
        serial: int,
        start: int,
        expires: float,
    ) -> Issued:
        keys.check_point(public_key)
        end = min(math.floor(expires), self.expires)  # nothing outlives its issuer
        if end <= start:
            raise CertificateError(f"expected an expiry after {_time(start)}, found {_time(end)} (does the CA live?)")
        public = Ed25519PublicKey.from_public_bytes(public_key)
        builder = (
            x509.CertificateBuilder(self.certificate.subject, subject, public, serial, _time(start), _time(end))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([_PURPOSES[usage] for usage in Usage if usage in usages]), False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(self._authority_key_id, critical=False)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=not subject.rdns)
        if role is not None:
            text = role.value.encode()
            encoded = bytes([UTF8_STRING, len(text)]) + text
            builder = builder.add_extension(x509.UnrecognizedExtension(ROLE_EXTENSION, encoded), critical=False)
        certificate = builder.sign(self.key, None)
        return Issued(
            pem=certificate.public_bytes(Encoding.PEM).decode("ascii"),
            serial=serial,
            expires=end,
            key_fingerprint=keys.fingerprint(public_key),
        )


def new_ca(
    cluster: ClusterId,
    *,
    now: float,
    rng: Rng,
    subject: fields.Subject | None = None,
    life: float = CA_LIFE,
) -> CertificateAuthority:
    key = keys.generate(rng)
    name = (subject or fields.Subject(cn=f"Nstance CA {cluster}", organization=(cluster,))).name()
    if not name.rdns:
        raise CertificateError("cn: the CA's subject is empty; give at least a cn")
    public = key.public_key()
    start = math.floor(now - SERVER_BACKDATE)
    end = math.floor(now + life)
    uri = x509.UniformResourceIdentifier(names.authority_uri(cluster))
    builder = (
        x509.CertificateBuilder(name, name, public, new_serial(rng), _time(start), _time(end))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    )
    return CertificateAuthority(builder.sign(key, None), key)


def load_ca(certificate_pem: str, key_pem: str) -> CertificateAuthority:
    return CertificateAuthority(load_certificate(certificate_pem), keys.private_key_from_pem(key_pem))


def load_certificate(pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except UNREADABLE as error:
        raise CertificateError(f"expected a certificate in PEM: {error}") from error


def cluster_of(certificate: x509.Certificate) -> ClusterId:
    """Whose CA certificate this is."""
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = alternatives.get_values_for_type(x509.UniformResourceIdentifier)
        return names.parse_authority_uri(uri)
    except (x509.ExtensionNotFound, *UNREADABLE) as error:
        raise CertificateError("expected a CA certificate of Nstance, with the cluster's URI in it") from error


def _time(seconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
