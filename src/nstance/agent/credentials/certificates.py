"""Reading certificates without a cryptography library, which would cost the agent a quarter of its memory.

OpenSSL, which TLS uses anyway, verifies chains, signatures and dates. This module only reads a few fields of certificates
that OpenSSL has accepted, or that are only reported. `identify` gives the same answers as `pki.peer.identify`, which
tests compare. The reader is strict: one encoding, no trailing data.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from nstance.pki import names
from nstance.pki.names import IdentityError

MAX_CERTIFICATE = 16 * 1024

_INTEGER, _OCTETS, _OID, _SEQUENCE, _SET, _TRUE = 0x02, 0x04, 0x06, 0x30, 0x31, b"\x01\x01\xff"
_UTC_TIME, _GENERAL_TIME = 0x17, 0x18
_TEXTS = {0x0C: "utf-8", 0x13: "ascii"}
_VERSION, _EXTENSIONS, _URI = 0xA0, 0xA3, 0x86
_COMMON_NAME, _ORGANIZATION = b"\x55\x04\x03", b"\x55\x04\x0a"
_BASIC_CONSTRAINTS, _KEY_PURPOSES, _ALTERNATIVES = b"\x55\x1d\x13", b"\x55\x1d\x25", b"\x55\x1d\x11"
_ROLE = bytes.fromhex("2b06010401bd843f01")  # 1.3.6.1.4.1.999999.1
_CLIENT = bytes.fromhex("2b06010505070302")

_LABEL = re.compile(rb"[A-Z0-9 ]{1,40}")
_TIME = re.compile(r"[0-9]{14}Z")


class MalformedError(ValueError):
    """Unexpected or damaged data; the message never shows content."""


@dataclass(frozen=True, slots=True)
class Certificate:
    serial: int
    not_before: float
    not_after: float
    subject: list[tuple[bytes, str]]
    extensions: dict[bytes, bytes]


def pem_blocks(data: bytes) -> list[tuple[str, bytes]]:
    """Labels and contents. Raises MalformedError if a block is damaged or cut off."""
    blocks = []
    for piece in data.split(b"-----BEGIN ")[1:]:
        label, _, rest = piece.partition(b"-----")
        body, _, end = rest.partition(b"-----")
        is_complete = body.startswith((b"\n", b"\r\n")) and end.startswith(b"END %s-----" % label)
        if not is_complete or not _LABEL.fullmatch(label):
            raise MalformedError("a PEM block is damaged or cut off")
        blocks.append((label.decode(), _base64(body)))
    return blocks


def _base64(body: bytes) -> bytes:
    headers, separator, rest = body.partition(b"\n\n")  # headers: of an encrypted key in the legacy format
    try:
        return base64.b64decode(b"".join((rest if separator and b":" in headers else body).split()), validate=True)
    except binascii.Error as error:
        raise MalformedError("a PEM block is not base64") from error


def values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The consecutive tags and contents in DER. Raises MalformedError."""
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise MalformedError("cut off")
        tag, size = data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[position : position + count], "big")
            if not 1 <= count <= 4 or size < 0x80 or size.bit_length() <= 8 * (count - 1):
                raise MalformedError("a length is not in DER encoding")
            position += count
        if position + size > len(data):
            raise MalformedError("cut off")
        yield tag, data[position : position + size]
        position += size


def only(data: bytes, tag: int = _SEQUENCE) -> bytes:
    """The content of data that is exactly one value."""
    found = list(values(data))
    if len(found) != 1 or found[0][0] != tag:
        raise MalformedError("not exactly one value of the expected type")
    return found[0][1]


def read(der: bytes) -> Certificate:
    """Raises MalformedError."""
    try:
        (_, signed), _, _ = values(only(der))
        fields = list(values(signed))
        if fields[0][0] == _VERSION:
            del fields[0]
        (serial_tag, serial), _, _, (_, validity), (_, subject), _, *optional = fields
        begin, end = (_time(tag, value) for tag, value in values(validity))
    except (IndexError, ValueError) as error:
        raise MalformedError("not a certificate") from error
    if serial_tag != _INTEGER or not serial:
        raise MalformedError("not a certificate")
    return Certificate(
        serial=int.from_bytes(serial, "big", signed=True),
        not_before=begin,
        not_after=end,
        subject=list(_subject(subject)),
        extensions=_extensions(next((value for tag, value in optional if tag == _EXTENSIONS), None)),
    )


def _time(tag: int, value: bytes) -> float:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text[:2] < "50" else "19") + text
    elif tag != _GENERAL_TIME:
        raise MalformedError("not a time")
    if not _TIME.fullmatch(text):
        raise MalformedError("not a time")
    return datetime.fromisoformat(f"{text[:8]}T{text[8:]}").timestamp()


def _subject(data: bytes) -> Iterator[tuple[bytes, str]]:
    for tag, part in values(data):
        if tag != _SET:
            raise MalformedError("not a subject")
        for _, attribute in values(part):
            found = list(values(attribute))
            if len(found) != 2 or found[0][0] != _OID:
                raise MalformedError("not a subject")
            encoding = _TEXTS.get(found[1][0], "latin-1")
            yield found[0][1], found[1][1].decode(encoding, "replace")


def _extensions(data: bytes | None) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for _, extension in values(only(data)) if data is not None else ():
        parts = list(values(extension))
        if len(parts) not in (2, 3) or parts[0][0] != _OID or parts[-1][0] != _OCTETS or parts[0][1] in found:
            raise MalformedError("not an extension, or a duplicate")
        found[parts[0][1]] = parts[-1][1]
    return found


def identify(der: bytes) -> names.Identity:
    """Raises IdentityError for anything but an identity certificate of Nstance."""
    if len(der) > MAX_CERTIFICATE:
        raise IdentityError(f"the certificate has {len(der)} bytes, more than {MAX_CERTIFICATE}")
    try:
        certificate = read(der)
        extensions = certificate.extensions
        alternatives = list(values(only(extensions[_ALTERNATIVES])))
        constraints = only(extensions[_BASIC_CONSTRAINTS])
        purposes = [value for _, value in values(only(extensions[_KEY_PURPOSES]))]
        role = extensions[_ROLE]
        uris = [value.decode("ascii") for tag, value in alternatives if tag == _URI]
    except KeyError as error:
        raise IdentityError("the certificate lacks an extension") from error
    except ValueError as error:
        raise IdentityError(f"the certificate cannot be read: {error}") from error
    if certificate.serial <= 0:
        raise IdentityError("expected a positive serial number")
    if len(uris) != 1:
        raise IdentityError(f"expected exactly one URI in the certificate, found {len(uris)}")
    identity = names.parse_uri(uris[0])
    if not isinstance(identity, names.Server) and len(alternatives) != 1:
        raise IdentityError("expected no alternative name besides the URI")
    if constraints.startswith(_TRUE):
        raise IdentityError("expected an identity, found a CA certificate")
    expected_subject = [(_COMMON_NAME, names.common_name(identity)), (_ORGANIZATION, names.organization(identity))]
    if sorted(certificate.subject) != expected_subject:
        raise IdentityError("the subject does not agree with the URI")
    expected = names.role(identity).value.encode()
    if role != bytes([0x0C, len(expected)]) + expected:
        raise IdentityError("the role does not agree with the URI")
    if _CLIENT not in purposes:
        raise IdentityError("the certificate is not for clients")
    return identity


def leaf(pem: bytes) -> tuple[bytes, Certificate]:
    """The first certificate of a PEM file. Raises MalformedError."""
    der = next((body for label, body in pem_blocks(pem) if label == "CERTIFICATE"), None)
    if der is None:
        raise MalformedError("there is no PEM certificate")
    return der, read(der)
