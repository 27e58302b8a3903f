"""The subject and alternative names of a certificate, checked value by value.

Values come from users' templates, so an error names its field. The trap: the library accepts much more than the
standards do (an address as a DNS name, any text as a URI), and a client then fails far away from the cause.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import NameOID

from nstance.pki import names

MAX_ALTERNATIVES = 100  # of one kind
MAX_ATTRIBUTES = 20  # of one kind
MAX_URI = 2048

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class CertificateError(ValueError):
    """The certificate cannot be issued as asked; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Fields are named as in configurations, except `postalCode`."""

    cn: str = ""
    organization: tuple[str, ...] = ()
    country: tuple[str, ...] = ()
    province: tuple[str, ...] = ()
    locality: tuple[str, ...] = ()
    street: tuple[str, ...] = ()
    postal_code: tuple[str, ...] = ()

    def name(self) -> x509.Name:
        """Most significant attribute first. Raises CertificateError."""
        attributes = [
            *_attributes("country", NameOID.COUNTRY_NAME, self.country, 2),
            *_attributes("province", NameOID.STATE_OR_PROVINCE_NAME, self.province, 128),
            *_attributes("locality", NameOID.LOCALITY_NAME, self.locality, 128),
            *_attributes("street", NameOID.STREET_ADDRESS, self.street, 128),
            *_attributes("postalCode", NameOID.POSTAL_CODE, self.postal_code, 40),
            *_attributes("organization", NameOID.ORGANIZATION_NAME, self.organization, 64),
            *_attributes("cn", NameOID.COMMON_NAME, (self.cn,) if self.cn else (), 64),
        ]
        return x509.Name(attributes)


def _attributes(
    field: str, oid: x509.ObjectIdentifier, values: Sequence[str], limit: int
) -> list[x509.NameAttribute[str]]:
    if len(values) > MAX_ATTRIBUTES:
        raise CertificateError(f"{field}: expected at most {MAX_ATTRIBUTES} values, found {len(values)}")
    for value in values:
        if not value.isprintable() or not 1 <= len(value.encode()) <= limit:  # the library counts bytes
            raise CertificateError(f"{field}: expected 1 to {limit} printable characters, found {value[:200]!r}")
        if oid == NameOID.COUNTRY_NAME and re.fullmatch(r"[A-Z]{2}", value) is None:
            raise CertificateError(f"{field}: expected two capital letters as in 'DE', found {value!r}")
    return [x509.NameAttribute(oid, value) for value in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """Subject alternative names. Empty values are left out, because a template may render empty on some instances."""

    dns: tuple[str, ...] = ()
    ip: tuple[str, ...] = ()
    uri: tuple[str, ...] = ()

    def general_names(self) -> list[x509.GeneralName]:
        """Without duplicates. Raises CertificateError."""
        for field, values in (("dns", self.dns), ("ip", self.ip), ("uri", self.uri)):
            if len(values) > MAX_ALTERNATIVES:
                raise CertificateError(f"{field}: expected at most {MAX_ALTERNATIVES} values, found {len(values)}")
        return [
            *(x509.DNSName(value) for value in dict.fromkeys(_dns(text) for text in self.dns if text)),
            *(x509.IPAddress(value) for value in dict.fromkeys(_address(text) for text in self.ip if text)),
            *(
                x509.UniformResourceIdentifier(value)
                for value in dict.fromkeys(_uri(text) for text in self.uri if text)
            ),
        ]


NO_ALTERNATIVES = Alternatives()


def _dns(text: str) -> str:
    labels = text.removeprefix("*.").split(".")
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise CertificateError(f"dns: expected a host name, found {text[:253]!r}")
    if labels[-1].isdigit():
        raise CertificateError(f"dns: expected a host name, found {text!r}; put an address into ip")
    return text


def _address(text: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise CertificateError(f"ip: expected an IPv4 or IPv6 address, found {text[:100]!r}") from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise CertificateError(f"ip: expected an address without a zone, found {text[:100]!r}")
    return address


def _uri(text: str) -> str:
    match = _URI.fullmatch(text)
    if match is None or len(text) > MAX_URI:
        raise CertificateError(f"uri: expected an absolute URI of plain ASCII, found {text[:200]!r}")
    if match[1].lower() == names.SCHEME:
        raise CertificateError(f"uri: {names.SCHEME} URIs are identities of Nstance itself, found {text[:200]!r}")
    return text
