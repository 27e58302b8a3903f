"""TLS contexts from the server's newest certificate.

Every new connection asks for its context, so a renewed certificate is used without closing connections.
"""

import ssl

from nstance.server.election import peer_http
from nstance.server.identity.issuer import ServerIdentity
from nstance.wire import tls


class TlsContexts:
    def __init__(self, identity: ServerIdentity, ca_pem: str) -> None:
        self.renew(identity, ca_pem)

    def renew(self, identity: ServerIdentity, ca_pem: str) -> None:
        self.identity, self.ca_pem = identity, ca_pem
        certificate_pem, key_pem, hosts = identity.certificate_pem, identity.key_pem, identity.hosts
        self._server_only = tls.server_context(
            certificate_pem=certificate_pem, key_pem=key_pem, ca_pem=None, hosts=hosts
        )
        self._mutual = tls.server_context(certificate_pem=certificate_pem, key_pem=key_pem, ca_pem=ca_pem, hosts=hosts)
        self._peer_server = peer_http.server_context(
            certificate_pem=certificate_pem, key_pem=key_pem, ca_pem=ca_pem, hosts=hosts
        )
        self._peer_client = peer_http.client_context(certificate_pem=certificate_pem, key_pem=key_pem, ca_pem=ca_pem)

    def grpc(self, mutual: bool) -> ssl.SSLContext:
        """For the gRPC ports; `mutual`: with client certificates."""
        return self._mutual if mutual else self._server_only

    def peer_server(self) -> ssl.SSLContext:
        return self._peer_server

    def peer_client(self) -> ssl.SSLContext:
        return self._peer_client
