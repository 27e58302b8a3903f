"""TLS settings of all connections: version 1.3 only, no session tickets, HTTP/2, the cluster's CA.

A ticket would let a peer return without its certificate. Host names are not checked, because instances know their
servers by addresses, which move; the server's identity in its certificate is checked instead, after each handshake and
before a request is sent (`channel.ExpectedServer`). The trap: the CA also signs workload certificates, so a valid chain
alone proves nothing.
"""

import ssl
from collections.abc import Collection

from nstance import key_pairs

ALPN = "h2"


class TlsError(ValueError):
    """A certificate, key or CA bundle that TLS cannot load."""


def server_context(
    *,
    certificate_pem: str,
    key_pem: bytes,
    ca_pem: str | None,
    alpn: str = ALPN,
    hosts: Collection[str] | None = None,
) -> ssl.SSLContext:
    """With a CA, clients need a certificate signed by it. `hosts`: the names that a client may ask for with SNI; Nstance's
    own clients ask for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    _set_protocol(context, alpn)
    _load_certificate(context, certificate_pem, key_pem)
    if ca_pem is not None:
        _load_ca(context, ca_pem)
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
    _set_protocol(context, alpn)
    _load_ca(context, ca_pem)
    if (certificate_pem is None) != (key_pem is None):
        raise TlsError("expected a client certificate and its key, found only one of them")
    if certificate_pem is not None and key_pem is not None:
        _load_certificate(context, certificate_pem, key_pem)
    return context


def _set_protocol(context: ssl.SSLContext, alpn: str) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([alpn])


def _load_ca(context: ssl.SSLContext, ca_pem: str) -> None:
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"expected PEM certificates in the CA bundle: {error}") from error


def _load_certificate(context: ssl.SSLContext, certificate_pem: str, key_pem: bytes) -> None:
    try:
        key_pairs.load(context, certificate_pem.encode(), key_pem)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"failed to load the certificate and key, or they do not fit: {error}") from error
