"""From a nonce to a certificate.

The same nonce with the same key gets the same certificate, so every failure but a refusal is simply tried again: the
key is on disk before it is shown (F8). A refusal is final: the same request would be refused for ever, and the server
says in its own log why.
"""

import logging
import socket
from collections.abc import Sequence

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.agent import certificates, keywork, plan
from nstance.agent.folder import Unusable
from nstance.agent.identity import Certified, IdentityFolder, Nonce
from nstance.agent.settings import Address, Settings
from nstance.clock import Clock, Rng
from nstance.v1 import registration_grpc, registration_pb2
from nstance.wire import status, tls
from nstance.wire.call import call
from nstance.wire.channel import Channel

CALL_SECONDS = 10.0
FINAL = frozenset({Status.UNAUTHENTICATED, Status.PERMISSION_DENIED, Status.INVALID_ARGUMENT})

# Nothing is sent to these: the system is only asked which of its own addresses would lead there.
_BEYOND = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}

log = logging.getLogger(__name__)


class Refused(Exception):
    """A server refused the nonce for good."""


async def register(
    settings: Settings, identity: IdentityFolder, nonce: Nonce, pair: keywork.Pair, *, clock: Clock, rng: Rng
) -> Certified:
    """Tries until it is registered. Raises Refused."""
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
                certified = identity.accept(response.certificate_pem, response.ca_bundle_pem)
                identity.remember_shard(nonce.shard)
                identity.forget_nonce()
                return certified
            except (Unusable, OSError) as error:
                log.error("cannot keep the certificate", extra={"reason": error})
        failures += 1
        await clock.sleep(plan.backoff(failures, rng))


async def _ask(
    addresses: Sequence[Address],
    ca_pem: str,
    nonce: Nonce,
    request: registration_pb2.RegisterAgentRequest,
    clock: Clock,
) -> registration_pb2.RegisterResponse | None:
    """Each server in turn; None if none of them gave an answer to go by."""
    for address in addresses:
        channel = Channel(
            str(address),
            context=tls.client_context(ca_pem=ca_pem),
            expect_cluster=nonce.cluster,
            expect_shard=nonce.shard,
            clock=clock,
            identify=certificates.identify,
        )
        try:
            stub = registration_grpc.RegistrationServiceStub(channel)
            return await call(stub.RegisterAgent, request, timeout=CALL_SECONDS)
        except GRPCError as error:
            if error.status in FINAL:
                raise Refused(f"{address}: {status.explain(error)}") from error
            log.warning("not registered yet", extra={"server": address, "reason": status.explain(error)})
        except OSError as error:
            log.warning("not registered yet", extra={"server": address, "reason": status.explain(error)})
        finally:
            channel.close()
    return None


def _own_address(family: socket.AddressFamily) -> str:
    """The address that leads out, or nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_BEYOND[family], 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if address.startswith(("127.", "169.254.", "fe80:")) or address == "::1" else address
