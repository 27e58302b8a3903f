"""TLS as every connection here uses it: version 1.3 only, no session tickets, HTTP/2, our own CA.

A ticket would let a peer come back without showing its certificate, so there are none. Host names are not checked:
instances know their servers by address, and addresses move. What is checked instead, after each handshake and before
a request is sent, is who the certificate says the server is (`channel.expect_server`). The trap: the CA also signs
workload certificates, so a valid chain alone proves nothing.
"""

import os
import ssl
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager

ALPN = "h2"


class TlsError(ValueError):
    """A certificate, key or CA bundle that TLS will not take."""


def server_context(
    *,
    certificate_pem: str,
    key_pem: bytes,
    ca_pem: str | None,
    alpn: str = ALPN,
    hosts: Collection[str] | None = None,
) -> ssl.SSLContext:
    """With a CA, clients must show a certificate of it; without, they are not asked for one. `hosts`: a client that asks
    for a server by name must mean one of these; our own clients ask for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    _shape(context, alpn)
    _load(context, certificate_pem, key_pem)
    if ca_pem is not None:
        _trust(context, ca_pem)
        context.verify_mode = ssl.CERT_REQUIRED
    if hosts is not None:
        known = frozenset(host.lower() for host in hosts)

        def check(_: object, wanted: str | None, __: object) -> int | None:
            known_name = wanted is None or wanted.lower() in known
            return None if known_name else ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

        context.sni_callback = check
    return context


def client_context(
    *, ca_pem: str, certificate_pem: str | None = None, key_pem: bytes | None = None, alpn: str = ALPN
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    _shape(context, alpn)
    _trust(context, ca_pem)
    if (certificate_pem is None) != (key_pem is None):
        raise TlsError("a client certificate and its key come together, found only one of them")
    if certificate_pem is not None and key_pem is not None:
        _load(context, certificate_pem, key_pem)
    return context


def _shape(context: ssl.SSLContext, alpn: str) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([alpn])


def _trust(context: ssl.SSLContext, ca_pem: str) -> None:
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"the CA bundle is not a list of PEM certificates: {error}") from error


def _load(context: ssl.SSLContext, certificate_pem: str, key_pem: bytes) -> None:
    with _unseen_file(certificate_pem.encode() + b"\n" + key_pem) as path:
        try:
            context.load_cert_chain(path, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(f"the certificate and key do not load or do not belong together: {error}") from error


def _no_password() -> bytes:
    """Without this, OpenSSL would ask on the terminal for the password of an encrypted key, and wait."""
    raise ValueError("the private key is encrypted; expected a plain PEM key")


@contextmanager
def _unseen_file(content: bytes) -> Iterator[str]:
    """A path for an API that only takes paths. Where the system can, no disk ever holds the content."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
        try:
            _write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp()  # mode 0600
    try:
        try:
            _write(descriptor, content)
        finally:
            os.close(descriptor)
        yield path
    finally:
        os.unlink(path)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
