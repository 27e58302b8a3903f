"""An operator's TLS credentials: its certificate, its key and the CA bundle.

All stores of credentials (files, a Secret) read them through `read`, so that unusable ones are found before their use.
"""

import ssl
from dataclasses import dataclass, field

from cryptography import x509

from nstance.pki import names
from nstance.pki import peer as certificates
from nstance.wire import tls

RENEW_AFTER = 2 / 3  # of the certificate's life


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    who: names.Operator
    begins: float
    expires: float
    certificate_pem: str = field(repr=False)
    key_pem: bytes = field(repr=False)
    ca_pem: str = field(repr=False)

    @property
    def renew_at(self) -> float:
        return self.begins + RENEW_AFTER * (self.expires - self.begins)

    def context(self) -> ssl.SSLContext:
        return tls.client_context(ca_pem=self.ca_pem, certificate_pem=self.certificate_pem, key_pem=self.key_pem)


def read(certificate_pem: bytes, key_pem: bytes, ca_pem: bytes) -> Credentials:
    """Raises ValueError for anything but an operator's certificate and its key. The caller checks the dates."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        text = certificate_pem.decode("ascii")
    except ValueError as problem:
        raise ValueError(f"expected a certificate in PEM: {problem}") from problem
    who = certificates.identify(ssl.PEM_cert_to_DER_cert(text.strip()))
    if not isinstance(who, names.Operator):
        raise ValueError(f"it is the certificate of {names.role(who).value} {who.id}, expected an operator's")
    found = Credentials(
        who=who,
        begins=certificate.not_valid_before_utc.timestamp(),
        expires=certificate.not_valid_after_utc.timestamp(),
        certificate_pem=text,
        key_pem=key_pem,
        ca_pem=ca_pem.decode("utf-8", "replace"),
    )
    found.context()
    return found
