"""The certificate authority.

Identity certificates (server, agent, operator) have an `nstance://` URI and a role; workload certificates never do, so
none of them passes for a server. Serial and times are arguments: Ed25519 signatures are deterministic, so the same
arguments give the same bytes, and a client whose first answer was lost gets the same certificate again.
"""

import datetime
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from nstance.clock import Rng
from nstance.model import roles
from nstance.model.ids import ClusterId
from nstance.pki import fields, keys, names
from nstance.pki.fields import CertificateError

ROLE_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.999999.1")  # server, agent or operator
# What an operator may do. Certificates without it are of role `operator`, as all were before there were roles.
OPERATOR_ROLE_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.999999.2")

DAY = 86400.0
CA_LIFE = 3650 * DAY
SERVER_LIFE = 30 * DAY
OPERATOR_LIFE = 365 * DAY
WORKLOAD_LIFE = 365 * DAY

# How far a verifier's clock may be behind: agents reach the server before their clock is set.
SERVER_BACKDATE = DAY
CLIENT_BACKDATE = 300.0

# What the library raises for invalid certificates. TypeError: for a name attribute of the wrong type.
UNREADABLE = (ValueError, TypeError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)

UTF8_STRING = 0x0C
_MAX_LIFE = 100 * 365 * DAY


class Usage(Enum):
    SERVER = "server"
    CLIENT = "client"


_PURPOSES = {Usage.SERVER: ExtendedKeyUsageOID.SERVER_AUTH, Usage.CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A rendered certificate template."""

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


@dataclass(frozen=True, slots=True)
class _Validity:
    serial: int
    start: int  # seconds since 1970
    expires: float


def new_serial(rng: Rng) -> int:
    return rng.bits(128) or 1  # zero is not a serial number


@dataclass(frozen=True)
class CertificateAuthority:
    certificate: x509.Certificate
    key: Ed25519PrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        try:
            is_pair = self.certificate.public_key() == self.key.public_key()
        except (ValueError, UnsupportedAlgorithm):
            is_pair = False
        if not is_pair:
            raise CertificateError("the CA's key and certificate do not fit each other")

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
        hosts: fields.Alternatives = fields.NO_ALTERNATIVES,
        *,
        serial: int,
        issued: float,
        expires: float,
    ) -> Issued:
        """`hosts`: the advertised ones; the loopback names are added."""
        alternatives = fields.Alternatives(dns=("localhost", *hosts.dns), ip=("127.0.0.1", "::1", *hosts.ip))
        validity = _Validity(serial, math.floor(issued - SERVER_BACKDATE), expires)
        return self._issue_identity(identity, public_key, frozenset(Usage), validity, alternatives)

    def issue_client(
        self,
        identity: names.Agent | names.Operator,
        public_key: bytes,
        *,
        serial: int,
        issued: float,
        expires: float,
    ) -> Issued:
        validity = _Validity(serial, math.floor(issued - CLIENT_BACKDATE), expires)
        return self._issue_identity(identity, public_key, frozenset({Usage.CLIENT}), validity)

    def issue_workload(self, spec: WorkloadSpec, public_key: bytes, *, serial: int, issued: float) -> Issued:
        if not spec.usages:
            raise CertificateError("kind: expected server, client or both")
        if not 1 <= spec.life <= _MAX_LIFE:  # also refuses NaN
            raise CertificateError(f"ttl: expected between a second and 100 years, found {spec.life} s")
        subject = spec.subject.name()
        alternatives = spec.alternatives.general_names()
        if not subject.rdns and not alternatives:
            raise CertificateError("cn: the certificate has no name; give a cn, dns, ip or uri")
        validity = _Validity(serial, math.floor(issued - CLIENT_BACKDATE), issued + spec.life)
        return self._sign(subject, alternatives, public_key, spec.usages, validity)

    def _issue_identity(
        self,
        identity: names.Identity,
        public_key: bytes,
        usages: frozenset[Usage],
        validity: _Validity,
        alternatives: fields.Alternatives = fields.NO_ALTERNATIVES,
    ) -> Issued:
        if identity.cluster != self.cluster:
            raise CertificateError(f"expected an identity of cluster {self.cluster}, found {identity.cluster}")
        subject = fields.Subject(cn=names.common_name(identity), organization=(names.organization(identity),))
        uri = x509.UniformResourceIdentifier(names.uri(identity))
        all_names = [uri, *alternatives.general_names()]
        markers = {ROLE_EXTENSION: names.role(identity).value}
        if isinstance(identity, names.Operator) and identity.role is not roles.Role.OPERATOR:
            markers[OPERATOR_ROLE_EXTENSION] = identity.role.value
        return self._sign(subject.name(), all_names, public_key, usages, validity, markers=markers)

    def _sign(
        self,
        subject: x509.Name,
        alternatives: Sequence[x509.GeneralName],
        public_key: bytes,
        usages: frozenset[Usage],
        validity: _Validity,
        *,
        markers: Mapping[x509.ObjectIdentifier, str] = MappingProxyType({}),
    ) -> Issued:
        keys.check_point(public_key)
        serial, start = validity.serial, validity.start
        end = min(math.floor(validity.expires), self.expires)  # nothing outlives its issuer
        if end <= start:
            raise CertificateError(f"expected an expiry after {_time(start)}, found {_time(end)}; has the CA expired?")
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
        for oid, text in markers.items():
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, utf8_string(text)), critical=False)
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


def utf8_string(text: str) -> bytes:
    """In DER; for short texts."""
    encoded = text.encode()
    return bytes([UTF8_STRING, len(encoded)]) + encoded


def load_ca(certificate_pem: str, key_pem: str) -> CertificateAuthority:
    return CertificateAuthority(load_certificate(certificate_pem), keys.private_key_from_pem(key_pem))


def load_certificate(pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except UNREADABLE as error:
        raise CertificateError(f"expected a certificate in PEM: {error}") from error


def cluster_of(certificate: x509.Certificate) -> ClusterId:
    """The cluster of a CA certificate."""
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
