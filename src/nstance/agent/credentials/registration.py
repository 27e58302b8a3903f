"""Registration: from a nonce to a certificate.

The same nonce with the same key gets the same certificate, so every failure except a rejection is retried: the key is
on disk before it is sent, and a lost answer is asked for again. A rejection is final, because the same request would be
rejected again; the server's log says why.
"""

import logging
import socket
from collections.abc import Sequence

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.agent import timing
from nstance.agent.credentials import certificates, key_generation
from nstance.agent.credentials.identity import IdentityFolder, Nonce, StoredCertificate
from nstance.agent.files.folder import SetupError
from nstance.agent.settings import Address, Settings
from nstance.clock import Clock, Rng
from nstance.v1 import registration_grpc, registration_pb2
from nstance.wire import status, tls
from nstance.wire.call import call
from nstance.wire.channel import Channel, ExpectedServer

CALL_TIMEOUT_SECONDS = 10.0
FINAL = frozenset({Status.UNAUTHENTICATED, Status.PERMISSION_DENIED, Status.INVALID_ARGUMENT})

# Nothing is sent there: the system only tells from which of its own addresses it would send.
_REMOTE_ADDRESSES = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}

log = logging.getLogger(__name__)


class NonceRejectedError(Exception):
    """A server rejected the nonce for good."""


async def register(
    settings: Settings,
    identity: IdentityFolder,
    nonce: Nonce,
    pair: key_generation.KeyPair,
    *,
    clock: Clock,
    rng: Rng,
) -> tuple[StoredCertificate, str]:
    """Retries until it is registered. Also returns the server's `traceparent`. Raises NonceRejectedError."""
    assert pair.signature is not None
    request = registration_pb2.RegisterAgentRequest(
        nonce=nonce.token,
        public_key_pem=pair.public_pem,
        proof=pair.signature,
        ipv4=settings.ipv4 or _own_address(socket.AF_INET),
        ipv6=settings.ipv6 or _own_address(socket.AF_INET6),
        hostname=settings.hostname or socket.gethostname(),
    )
    failures = 0
    while True:
        response = await _ask(settings.registration, identity.ca_pem(), nonce, request, clock)
        if response is not None:
            try:
                certificate = identity.accept(response.certificate_pem, response.ca_bundle_pem)
                identity.store_shard(nonce.shard)
                identity.delete_nonce()
                return certificate, response.traceparent
            except (SetupError, OSError) as error:
                log.error("failed to store the certificate", extra={"reason": error})
        failures += 1
        await clock.sleep(timing.BACKOFF.delay(failures, rng))


async def _ask(
    addresses: Sequence[Address],
    ca_pem: str,
    nonce: Nonce,
    request: registration_pb2.RegisterAgentRequest,
    clock: Clock,
) -> registration_pb2.RegisterResponse | None:
    """Each server in turn; None if none of them answered."""
    for address in addresses:
        channel = Channel(
            str(address),
            context=tls.client_context(ca_pem=ca_pem),
            expect=ExpectedServer(nonce.cluster, nonce.shard, certificates.identify),
            clock=clock,
        )
        try:
            stub = registration_grpc.RegistrationServiceStub(channel)
            return await call(stub.RegisterAgent, request, timeout=CALL_TIMEOUT_SECONDS)
        except (GRPCError, OSError) as error:
            reason = status.explain(error)
            if isinstance(error, GRPCError) and error.status in FINAL:
                raise NonceRejectedError(f"{address}: {reason}") from error
            log.warning(
                "failed to register, retrying", extra={"server": address, "reason": reason.removeprefix(f"{address}: ")}
            )
        finally:
            channel.close()
    return None


def _own_address(family: socket.AddressFamily) -> str:
    """The address that this machine sends from, or nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_REMOTE_ADDRESSES[family], 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if address.startswith(("127.", "169.254.", "fe80:")) or address == "::1" else address
