"""The identity in a peer's TLS certificate.

TLS has verified the chain, the dates and the purpose. Here the URI is read, and CN, O and role must agree with it. The
trap: a workload certificate comes from the same CA, with a subject of the user's choice; only the URI and the role, which
workloads never get, tell them apart.
"""

import base64
from dataclasses import replace

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nstance.model import roles
from nstance.model.events import Credential
from nstance.pki import ca, names
from nstance.pki.names import IdentityError

MAX_CERTIFICATE = 16 * 1024


def identify(der: bytes) -> names.Identity:
    """Raises IdentityError for anything but an identity certificate of Nstance."""
    if len(der) > MAX_CERTIFICATE:
        raise IdentityError(f"the certificate has {len(der)} bytes, more than {MAX_CERTIFICATE}")
    try:
        certificate = x509.load_der_x509_certificate(der)
        identity = _identity(certificate)
        _check(certificate, identity)
        identity = _with_role(certificate, identity)
    except IdentityError:
        raise
    except x509.ExtensionNotFound as error:
        raise IdentityError(f"the certificate lacks an extension: {error}") from error
    except ca.UNREADABLE as error:
        raise IdentityError(f"the certificate cannot be read: {error}") from error
    return identity


def credential(der: bytes) -> Credential:
    """Of a certificate that `identify` has accepted."""
    certificate = x509.load_der_x509_certificate(der)
    return Credential(
        public_key=base64.b64encode(certificate.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode(),
        certificate_serial=f"{certificate.serial_number:x}",
        certificate_expires=certificate.not_valid_after_utc.timestamp(),
    )


def _identity(certificate: x509.Certificate) -> names.Identity:
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = alternatives.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise IdentityError(f"expected exactly one URI in the certificate, found {len(uris)}")
    identity = names.parse_uri(uris[0])
    if not isinstance(identity, names.Server) and len(list(alternatives)) != 1:
        raise IdentityError("expected no alternative name besides the URI")
    return identity


def _with_role(certificate: x509.Certificate, identity: names.Identity) -> names.Identity:
    """What the operator may do; a role that this program does not know is no role at all."""
    try:
        extension = certificate.extensions.get_extension_for_oid(ca.OPERATOR_ROLE_EXTENSION).value
    except x509.ExtensionNotFound:
        return identity
    assert isinstance(extension, x509.UnrecognizedExtension)
    found = [role for role in roles.Role if ca.utf8_string(role.value) == extension.value]
    if not found or not isinstance(identity, names.Operator):
        raise IdentityError("the role of the operator is unknown; is this program older than the certificate?")
    return replace(identity, role=found[0])


def _check(certificate: x509.Certificate, identity: names.Identity) -> None:
    if certificate.serial_number <= 0:
        raise IdentityError("expected a positive serial number")
    extensions = certificate.extensions
    if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        raise IdentityError("expected an identity, found a CA certificate")
    expected = {
        (NameOID.COMMON_NAME, names.common_name(identity)),
        (NameOID.ORGANIZATION_NAME, names.organization(identity)),
    }
    found = [(attribute.oid, attribute.value) for attribute in certificate.subject]
    if len(found) != len(expected) or set(found) != expected:
        raise IdentityError(f"the subject does not agree with the URI: {certificate.subject.rfc4514_string()[:200]!r}")
    extension = extensions.get_extension_for_oid(ca.ROLE_EXTENSION).value
    assert isinstance(extension, x509.UnrecognizedExtension)
    if extension.value != ca.utf8_string(names.role(identity).value):
        raise IdentityError("the role does not agree with the URI")
    if ExtendedKeyUsageOID.CLIENT_AUTH not in extensions.get_extension_for_class(x509.ExtendedKeyUsage).value:
        raise IdentityError("the certificate is not for clients")
