"""Registers agents and operators: a nonce and a key become a certificate.

The port is open to everybody who can reach it. So the signature is checked before anything is looked up, the answer says
no more than "invalid registration nonce", and failures are limited per address. The log has the reason.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance import points
from nstance.authority import errors as authority_errors
from nstance.authority.keyset import Authority
from nstance.authority.operators import Operators
from nstance.clock import Clock
from nstance.model import events as ev
from nstance.model.decision import ReasonCode
from nstance.model.ids import DEFAULT_TENANT, ClusterId, InstanceId, OperatorId
from nstance.model.instance import Instance
from nstance.objects import errors as storage
from nstance.pki import ca, keys, nonce, proof
from nstance.server.api import asking
from nstance.server.config.advertised import Advertised
from nstance.server.leader.context import ShardContext
from nstance.telemetry.metrics import Metrics
from nstance.v1 import registration_grpc, registration_pb2
from nstance.wire import status
from nstance.wire.peer import connection_of

log = logging.getLogger(__name__)

Claims = TypeVar("Claims", nonce.AgentClaims, nonce.OperatorClaims)
Request = registration_pb2.RegisterAgentRequest | registration_pb2.RegisterOperatorRequest

INVALID = "invalid registration nonce"
MAX_FAILURES = 30  # per address and window; the machine itself is not limited
WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 10_000
LOOPBACK = ("127.", "::1")


class Failures:
    """Counts the recent failures of each address."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}

    @contextmanager
    def counted(self, address: str) -> Iterator[None]:
        """Rejects the call if there were too many failures, and counts it if it fails."""
        self._check(address)
        try:
            yield
        except GRPCError as error:
            if error.status is not Status.UNAVAILABLE:
                self._count(address)
            raise

    def _check(self, address: str) -> None:
        started, count = self._seen.get(address, (0.0, 0))
        if count >= MAX_FAILURES and self._clock.monotonic() - started < WINDOW_SECONDS:
            raise status.exhausted("too many failed registrations from this address, wait a minute")

    def _count(self, address: str) -> None:
        if address.startswith(LOOPBACK):
            return
        now = self._clock.monotonic()
        started, count = self._seen.pop(address, (now, 0))
        if now - started >= WINDOW_SECONDS:
            started, count = now, 0
        if len(self._seen) >= MAX_ADDRESSES:
            self._seen.pop(next(iter(self._seen)))
        self._seen[address] = (started, count + 1)


class Registrar:
    def __init__(
        self, context: ShardContext, operators: Operators, advertised: Advertised, metrics: Metrics, clock: Clock
    ) -> None:
        self._context = context
        self._shard = context.shard
        self._issuer = context.issuer
        self._advertised = advertised
        self._metrics = metrics
        self._operators = operators
        self._clock = clock
        self._failures = Failures(clock)

    async def register_agent(
        self, request: registration_pb2.RegisterAgentRequest, address: str
    ) -> registration_pb2.RegisterResponse:
        with self._failures.counted(address):
            return await self._agent(request, address)

    async def register_operator(
        self, request: registration_pb2.RegisterOperatorRequest, address: str
    ) -> registration_pb2.RegisterResponse:
        with self._failures.counted(address):
            return await self._operator(request, address)

    async def _agent(
        self, request: registration_pb2.RegisterAgentRequest, address: str
    ) -> registration_pb2.RegisterResponse:
        shard, issuer, life, started = self._shard, self._issuer, self._context.agent_ttl, self._clock.monotonic()
        claims, public_key = self._verified(request, address, issuer.verify)
        instance = shard.instances.get(claims.instance)
        if instance is None or not _matches(claims, instance):
            raise self._reject(address, f"no instance {claims.instance} with this nonce")
        new = issuer.new_certificate(public_key, life=life)
        owner = shard.owner_of_key(new.public_key)
        if owner is not None and owner != instance.id:
            self._record_violation(instance, f"registration rejected: it presented the key of {owner}")
            raise status.denied("this key belongs to another instance")
        for claimed in (request.ipv4, request.ipv6):
            if claimed and claimed in self._advertised.hosts:
                self._record_violation(instance, f"registration rejected: it claims the server address {claimed}")
                raise status.denied("this address belongs to a server")
        await points.reach(points.Point.BEFORE_REGISTRATION)
        refusal = await asking.ask(
            shard,
            ev.Registered(
                id=instance.id,
                **new.as_fields(),
                ip4=_printable(request.ipv4),
                ip6=_printable(request.ipv6),
                hostname=_printable(request.hostname),
            ),
        )
        await points.reach(points.Point.AFTER_REGISTRATION)
        if refusal is not None:
            raise self._reject(address, f"{instance.id}: {refusal.value}")
        record = shard.instances[instance.id]
        if record.registered is not None:
            self._metrics.registered(record.key, record.registered - record.created)
        response = certificate_response(issuer.agent_certificate(record, life=life), issuer.authority)
        if self._context.traces is not None:
            response.traceparent = self._context.traces.registered(record, started).traceparent
        return response

    async def _operator(
        self, request: registration_pb2.RegisterOperatorRequest, address: str
    ) -> registration_pb2.RegisterResponse:
        authority, settings = self._issuer.authority, self._context.configuration.settings
        claims, public_key = self._verified(
            request, address, lambda token: authority.verify_operator_nonce(token, now=self._clock.wall())
        )
        if claims.tenant != DEFAULT_TENANT and claims.tenant not in settings.tenants:
            raise self._reject(address, f"the tenant {claims.tenant} is not configured")
        try:
            _, issued = await self._operators.register(
                authority, claims, public_key, life=settings.shard.identity.operator_ttl
            )
        except (authority_errors.NonceUsedError, authority_errors.NotRegisteredError) as problem:
            raise self._reject(address, str(problem)) from None
        except (storage.StorageError, authority_errors.AuthorityError) as problem:
            log.warning("failed to register operator", extra={"error": str(problem)})
            raise status.unavailable("failed to store the registration, try again") from None
        return certificate_response(issued, authority)

    def _verified(self, request: Request, address: str, verify: Callable[[str], Claims]) -> tuple[Claims, bytes]:
        """Checks the signature first, so that a forged nonce learns nothing and costs little."""
        try:
            claims = verify(request.nonce)
            public_key = keys.public_key_from_pem(request.public_key_pem)
            proof.check_registration(request.proof, public_key=public_key, cluster=claims.cluster, nonce=request.nonce)
            return claims, public_key
        except nonce.InvalidNonceError as problem:
            raise self._reject(address, problem.reason) from None
        except proof.InvalidProofError as problem:
            raise self._reject(address, str(problem)) from None
        except keys.UnacceptableKeyError as problem:
            raise status.invalid("public_key_pem", str(problem)) from None

    def _reject(self, address: str, reason: str) -> GRPCError:
        log.warning("registration rejected", extra={"address": address, "reason": reason})
        return status.unauthenticated(INVALID)

    def _record_violation(self, instance: Instance, message: str) -> None:
        self._shard.event_log.record(instance.key, ReasonCode.SECURITY, message, instance.id)


class RegistrationService(registration_grpc.RegistrationServiceBase):
    """The gRPC face of the registrar."""

    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar

    async def RegisterAgent(self, stream: Any) -> None:
        request = await stream.recv_message()
        await stream.send_message(await self._registrar.register_agent(request, connection_of(stream).address))

    async def RegisterOperator(self, stream: Any) -> None:
        request = await stream.recv_message()
        await stream.send_message(await self._registrar.register_operator(request, connection_of(stream).address))


def certificate_response(issued: ca.Issued, authority: Authority) -> registration_pb2.RegisterResponse:
    """The answer to a registration or a renewal."""
    return registration_pb2.RegisterResponse(
        certificate_pem=issued.pem, expires_unix=int(issued.expires), ca_bundle_pem=authority.bundle
    )


def renewed_key(
    request: registration_pb2.RenewCertificateRequest, *, cluster: ClusterId, id: InstanceId | OperatorId
) -> bytes:
    """The new key that a renewal brings and proves to hold. Raises INVALID_ARGUMENT."""
    try:
        public_key = keys.public_key_from_pem(request.public_key_pem)
        proof.check_renewal(request.proof, public_key=public_key, cluster=cluster, id=id)
    except (keys.UnacceptableKeyError, proof.InvalidProofError) as problem:
        raise status.invalid("public_key_pem", str(problem)) from None
    return public_key


def _matches(claims: nonce.AgentClaims, instance: Instance) -> bool:
    return (
        instance.nonce is not None
        and instance.nonce.jti == claims.jti
        and instance.tenant == claims.tenant
        and instance.group == claims.group
        and instance.on_demand == claims.on_demand
    )


def _printable(text: str) -> str:
    return text if len(text) <= 255 and text.isprintable() else ""
