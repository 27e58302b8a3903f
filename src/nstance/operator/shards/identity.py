"""The operator's identity: from a nonce to a certificate, kept in Secrets.

The order makes a crash harmless: the key is stored before it is sent, the same nonce with the same key gets the same
certificate again, and a stored certificate needs no nonce. Secrets are only created, or changed at the version that was
read, so two operators that start together end up with one identity. The trap: a Secret that could not be read is not a
missing Secret; only the API server's own "not found" counts.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nstance.clock import Clock, Rng
from nstance.kube import errors, kinds
from nstance.kube.port import Kube, Object
from nstance.operator import secrets
from nstance.operator.config_file import Configuration
from nstance.operator.errors import FatalError
from nstance.operator.options import WAITS, Environment, Waits
from nstance.operator.shards import registration
from nstance.operator.shards.ports import ShardRefusedError, ShardUnreachableError
from nstance.pki import keys, nonce, proof
from nstance.v1.registration_pb2 import RegisterOperatorRequest, RegisterResponse
from nstance.wire import credentials, tls
from nstance.wire.credentials import Credentials

log = logging.getLogger(__name__)

CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
PRIVATE, PUBLIC, NONCE = "private.key", "public.key", "nonce.jwt"

KUBE_TIMEOUT_SECONDS = 60.0  # an API server that does not answer is asked again for so long
RENEW_RETRY_SECONDS = (30.0, 60.0)
LONGEST_SLEEP_SECONDS = 3600.0  # clocks jump: the time of the renewal is checked again

T = TypeVar("T")


class IdentityStore:
    """Holds the credentials that links use, and renews them."""

    def __init__(
        self,
        kube: Kube,
        environment: Environment,
        configuration: Configuration,
        *,
        clock: Clock,
        rng: Rng,
        waits: Waits = WAITS,
    ) -> None:
        """`environment` has the namespace and the names of the Secrets and the ConfigMap."""
        self._kube = kube
        self._environment = environment
        self._namespace = environment.namespace
        self._configuration = configuration
        self._owner = configuration.cluster, configuration.tenant
        self._clock = clock
        self._rng = rng
        self._waits = waits
        self._ca = b""  # from the ConfigMap
        self.current: Credentials | None = None

    def credentials(self) -> Credentials:
        assert self.current is not None, "obtain() must come first"
        return self.current

    async def obtain(self) -> Credentials:
        """The stored certificate, or a new one. Raises FatalError."""
        self._ca = await self._read_ca()
        self.current = await self._read_stored()
        if self.current is None:
            key = await self._read_or_create_key()
            token = await self._read_nonce()
            answer = await self._register(key, token)
            self.current = await self._store_first(answer, key)
            log.info(
                "operator registered",
                extra={"operator": self.current.who.id, "expires": _timestamp(self.current.expires)},
            )
        return self.current

    async def renew(
        self, request: Callable[[], Awaitable[RegisterResponse]], on_change: Callable[[Credentials], None]
    ) -> None:
        """Until it is cancelled: renews each certificate after two thirds of its lifetime."""
        while True:
            current = self.credentials()
            on_change(current)
            await self._clock.sleep(min(LONGEST_SLEEP_SECONDS, max(0.0, current.renew_at - self._clock.wall())))
            if self._clock.wall() < current.renew_at:
                continue
            try:
                self.current = await self._renew_once(request)
                log.info("client certificate renewed", extra={"expires": _timestamp(self.current.expires)})
            except (errors.KubeError, ShardUnreachableError, ShardRefusedError, ValueError) as problem:
                log.error(
                    "failed to renew client certificate, retrying",
                    extra={"reason": problem, "expires": _timestamp(current.expires)},
                )
                await self._clock.sleep(self._rng.uniform(*RENEW_RETRY_SECONDS))

    async def _renew_once(self, request: Callable[[], Awaitable[RegisterResponse]]) -> Credentials:
        """If another operator renewed it already, its certificate is taken."""
        secret = await self._get(kinds.SECRET, self._environment.cert_secret)
        stored = self._parse(secret)
        if stored is not None and self._clock.wall() < stored.renew_at:
            return stored
        answer = await request()
        key_pem = self.credentials().key_pem
        renewed = self._accept(answer, key_pem)
        try:
            await secrets.write(self._kube, self._certificate_secret(answer, key_pem), seen=secret)
        except (errors.ConflictError, errors.AlreadyExistsError):
            log.info("client certificate renewed by another operator too: the newest one stays in the Secret")
        return renewed

    # ---- reading

    async def _read_ca(self) -> bytes:
        name = self._environment.ca_configmap
        where = f"ConfigMap {self._namespace}/{name}"
        found = await self._get(kinds.CONFIG_MAP, name)
        text = ((found or {}).get("data") or {}).get(CA) or ""
        if not text.strip():
            raise FatalError(
                f"{where} {'has no ca.crt' if found is not None else 'is missing'}: create it with "
                f"`kubectl create configmap {name} --from-file=ca.crt=<path-to-ca-cert>`"
            )
        try:
            tls.client_context(ca_pem=text)
        except tls.TlsError as problem:
            raise FatalError(f"ca.crt in {where} is not the cluster's CA certificate: {problem}") from problem
        return str(text).encode()

    async def _read_stored(self) -> Credentials | None:
        """The certificate in the Secret; None if there is none, or an expired one."""
        secret = await self._get(kinds.SECRET, self._environment.cert_secret)
        try:
            stored = self._parse(secret)
        except ValueError as problem:
            where = f"Secret {self._namespace}/{self._environment.cert_secret}"
            raise FatalError(
                f"{where} cannot be used: {problem}; delete it to register again with a new nonce"
            ) from problem
        if stored is not None and stored.expires <= self._clock.wall():
            log.warning(
                "stored client certificate expired, registering again", extra={"expired": _timestamp(stored.expires)}
            )
            return None
        return stored

    def _parse(self, secret: Object | None) -> Credentials | None:
        """Raises ValueError if the Secret holds something else than this operator's identity."""
        data = secrets.decode(secret)
        if not data.get(CERTIFICATE) and not data.get(KEY):
            return None
        ca_pem = _join([self._ca, data.get(CA, b"")])
        return self._check(credentials.read(data.get(CERTIFICATE, b""), data.get(KEY, b""), ca_pem))

    def _check(self, found: Credentials) -> Credentials:
        if (found.who.cluster, found.who.tenant) != self._owner:
            raise ValueError(
                f"the certificate is of cluster {found.who.cluster} and tenant {found.who.tenant}, "
                f"the configuration of {' and '.join(self._owner)}"
            )
        return found

    async def _read_or_create_key(self) -> Ed25519PrivateKey:
        name, where = self._environment.key_secret, f"Secret {self._namespace}/{self._environment.key_secret}"
        for _ in range(3):
            secret = await self._get(kinds.SECRET, name)
            if secret is not None:
                try:
                    return keys.private_key_from_pem(secrets.decode(secret).get(PRIVATE, b""))
                except ValueError as problem:
                    raise FatalError(f"{PRIVATE} in {where} cannot be used: {problem}") from problem
            key = keys.generate(self._rng)
            content = {
                PRIVATE: keys.private_to_pem(key).encode(),
                PUBLIC: keys.public_to_pem(keys.public_bytes(key)).encode(),
            }
            body = secrets.manifest(name, self._namespace, content)
            with contextlib.suppress(errors.AlreadyExistsError):
                await self._retry(partial(self._kube.create, kinds.SECRET, body), f"create {where}")
            # Read back in any case: the stored key counts, also if another operator stored it.
        raise FatalError(f"{where} was stored but is missing again; check what deletes it")

    async def _read_nonce(self) -> str:
        name, where = self._environment.nonce_secret, f"Secret {self._namespace}/{self._environment.nonce_secret}"
        secret = await self._get(kinds.SECRET, name)
        token = secrets.decode(secret).get(NONCE, b"").decode("ascii", "replace").strip()
        advice = (
            f'create a nonce with `nstance-admin cluster nonce --expiry="3h"` and store it with '
            f"`kubectl create secret generic {name} --from-file={NONCE}=<path-to-nonce>`"
        )
        if not token:
            missing = f"has no {NONCE}" if secret is not None else "is missing"
            raise FatalError(f"{where} {missing}, and the operator is not registered yet: {advice}")
        try:
            claims = nonce.unverified(token)
        except nonce.InvalidNonceError as problem:
            raise FatalError(f"{NONCE} in {where} is no registration nonce ({problem.reason}): {advice}") from problem
        if not isinstance(claims, nonce.OperatorClaims):
            raise FatalError(f"{NONCE} in {where} is an agent's nonce, expected an operator's: {advice}")
        if (claims.cluster, claims.tenant) != self._owner:
            raise FatalError(
                f"{NONCE} in {where} is for cluster {claims.cluster} and tenant {claims.tenant}, "
                f"the configuration is for {' and '.join(self._owner)}"
            )
        if claims.expires + nonce.LEEWAY_SECONDS <= self._clock.wall():
            raise FatalError(f"{NONCE} in {where} expired at {_timestamp(claims.expires)}: {advice}")
        return token

    # ---- registering

    async def _register(self, key: Ed25519PrivateKey, token: str) -> RegisterResponse:
        request = RegisterOperatorRequest(
            nonce=token,
            public_key_pem=keys.public_to_pem(keys.public_bytes(key)),
            proof=proof.prove_registration(key, cluster=self._configuration.cluster, nonce=token),
        )
        try:
            return await registration.register(
                request,
                self._configuration,
                ca_pem=self._ca.decode(),
                clock=self._clock,
                rng=self._rng,
                waits=self._waits,
            )
        except registration.NonceRejectedError as problem:
            raise FatalError(
                f"the nonce in Secret {self._namespace}/{self._environment.nonce_secret} was rejected: {problem}; it was "
                "used with another key before, was revoked, or is of another cluster (the server's log says which): "
                'create a new one with `nstance-admin cluster nonce --expiry="3h"`'
            ) from problem
        except registration.UntrustedShardsError as problem:
            raise FatalError(
                f"the shards' certificates are not of the CA in ConfigMap {self._namespace}/"
                f"{self._environment.ca_configmap}: {problem}; store the right ca.crt there"
            ) from problem
        except registration.NoShardAnsweredError as problem:
            raise FatalError(
                f"no shard could be reached to register the operator: {problem}; check registration_addr"
            ) from problem

    async def _store_first(self, answer: RegisterResponse, key: Ed25519PrivateKey) -> Credentials:
        key_pem = keys.private_to_pem(key).encode()
        try:
            issued = self._accept(answer, key_pem)
        except ValueError as problem:
            raise FatalError(f"a shard issued a certificate that cannot be used: {problem}") from problem
        name = self._environment.cert_secret
        where = f"Secret {self._namespace}/{name}"
        body = self._certificate_secret(answer, key_pem)
        try:
            await self._retry(lambda: self._kube.create(kinds.SECRET, body), f"create {where}")
            return issued
        except errors.AlreadyExistsError:
            stored = await self._read_stored()
            if stored is not None:
                return stored
        # The existing one is expired or empty.
        patch = {"data": body["data"]}
        await self._retry(
            lambda: self._kube.patch(kinds.SECRET, name, patch, namespace=self._namespace), f"change {where}"
        )
        return issued

    def _accept(self, answer: RegisterResponse, key_pem: bytes) -> Credentials:
        """Raises ValueError."""
        ca_pem = _join([self._ca, answer.ca_bundle_pem.encode()])
        issued = self._check(credentials.read(answer.certificate_pem.encode(), key_pem, ca_pem))
        if issued.expires <= self._clock.wall():
            raise ValueError(
                f"it expired at {_timestamp(issued.expires)}: the nonce was used long ago, a new one is needed"
            )
        return issued

    def _certificate_secret(self, answer: RegisterResponse, key_pem: bytes) -> Object:
        """With the CA bundle: after a CA rotation the ConfigMap alone is not enough."""
        content = {CERTIFICATE: answer.certificate_pem.encode(), KEY: key_pem, CA: answer.ca_bundle_pem.encode()}
        return secrets.manifest(self._environment.cert_secret, self._namespace, content, kind=secrets.TLS)

    async def _get(self, kind: kinds.Kind, name: str) -> Object | None:
        """None only if the API server says that there is none."""
        try:
            return await self._retry(
                lambda: self._kube.get(kind, name, namespace=self._namespace),
                f"read {kind.name} {self._namespace}/{name}",
            )
        except errors.NotFoundError:
            return None

    async def _retry(self, request: Callable[[], Awaitable[T]], action: str) -> T:
        """Until the API server answers. Raises FatalError if it does not, or forbids it."""
        deadline = self._clock.monotonic() + KUBE_TIMEOUT_SECONDS
        while True:
            try:
                return await request()
            except (errors.UnavailableError, errors.UnknownOutcomeError, errors.ThrottledError) as problem:
                if self._clock.monotonic() >= deadline:
                    raise FatalError(
                        f"the Kubernetes API server does not answer, could not {action}: {problem}"
                    ) from problem
                log.warning(
                    "failed to reach Kubernetes API server, retrying", extra={"action": action, "reason": problem}
                )
                await self._clock.sleep(self._rng.uniform(0.5, 1.5) * self._waits.kube_retry)
            except (errors.ForbiddenError, errors.InvalidError) as problem:
                raise FatalError(f"not allowed to {action}: {problem}; see the manifests in config/rbac") from problem


def _join(bundles: Iterable[bytes]) -> bytes:
    """Each certificate once."""
    end = b"-----END CERTIFICATE-----"
    certificates = [part.strip() for bundle in bundles for part in bundle.split(end) if part.strip()]
    return b"".join(part + b"\n" + end + b"\n" for part in dict.fromkeys(certificates))


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
