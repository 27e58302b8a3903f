"""The operator's identity: from a nonce to a certificate, kept in Secrets.

The order makes a crash harmless: the key is stored before it is shown to anybody, the same nonce with the same key gets
the same certificate again, and a stored certificate needs no nonce. Secrets are only ever created, or changed at the
version that was read, so two operators that start at once end up with one identity. The trap: a Secret that could not be
read is not a Secret that is missing; only the API server's own "not found" counts.
"""

import base64
import binascii
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nstance.clock import Clock, Rng
from nstance.kube import errors, kinds
from nstance.kube.port import Kube, Object
from nstance.operator.config_file import Configuration
from nstance.operator.errors import FatalError
from nstance.operator.shards import registration
from nstance.operator.shards.ports import ShardRefusedError, ShardUnreachableError
from nstance.pki import keys, nonce, proof
from nstance.tasks.backoff import retry
from nstance.v1 import registration_pb2
from nstance.wire import credentials, tls
from nstance.wire.credentials import Credentials

log = logging.getLogger(__name__)

CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
PRIVATE, PUBLIC, NONCE = "private.key", "public.key", "nonce.jwt"

KUBE_SECONDS = 60.0  # as long as an API server is asked again that did not answer
RETRY_SECONDS = 1.0
RENEW_RETRY_SECONDS = (30.0, 60.0)
LONGEST_SLEEP = 3600.0  # clocks jump: the time of a renewal is looked at again

T = TypeVar("T")
Answer = registration_pb2.RegisterResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the objects in Kubernetes are called."""

    namespace: str
    ca_configmap: str = "nstance-cluster-ca"
    cert_secret: str = "nstance-operator-cert"
    key_secret: str = "nstance-operator-key"
    nonce_secret: str = "nstance-operator-nonce"


class IdentityStore:
    """Holds the credentials that links show, and renews them."""

    def __init__(self, kube: Kube, names: Names, configuration: Configuration, *, clock: Clock, rng: Rng) -> None:
        self._kube = kube
        self._names = names
        self._cluster = configuration.cluster
        self._tenant = configuration.tenant
        self._configuration = configuration
        self._clock = clock
        self._rng = rng
        self._ca = b""  # the ConfigMap's
        self.current: Credentials | None = None

    def credentials(self) -> Credentials:
        assert self.current is not None, "asked before obtain() was done"
        return self.current

    async def obtain(self) -> Credentials:
        """The stored certificate, or a new one. Raises Fatal."""
        self._ca = await self._read_ca()
        self.current = await self._stored()
        if self.current is None:
            key = await self._key()
            token = await self._nonce()
            answer = await self._register(key, token)
            self.current = await self._keep_first(answer, key)
            log.info("registered", extra={"operator": self.current.who.id, "expires": _when(self.current.expires)})
        return self.current

    async def renew(self, ask: Callable[[], Awaitable[Answer]], told: Callable[[Credentials], None]) -> None:
        """Until it is cancelled: a new certificate whenever two thirds of one's life are over."""
        while True:
            current = self.credentials()
            told(current)
            await self._clock.sleep(min(LONGEST_SLEEP, max(0.0, current.renew_at - self._clock.wall())))
            if self._clock.wall() < current.renew_at:
                continue
            try:
                self.current = await self._renewed(ask)
                log.info("the certificate was renewed", extra={"expires": _when(self.current.expires)})
            except (errors.KubeError, ShardUnreachableError, ShardRefusedError, ValueError) as problem:
                log.error(
                    "the certificate could not be renewed, trying again",
                    extra={"reason": problem, "expires": _when(current.expires)},
                )
                await self._clock.sleep(self._rng.uniform(*RENEW_RETRY_SECONDS))

    async def _renewed(self, ask: Callable[[], Awaitable[Answer]]) -> Credentials:
        """Another operator may have done it; then its certificate is taken."""
        secret = await self._get(kinds.SECRET, self._names.cert_secret)
        theirs = self._usable(secret)
        if theirs is not None and self._clock.wall() < theirs.renew_at:
            return theirs
        answer = await ask()
        key = self.credentials().key_pem
        fresh = self._accept(answer, key)
        body = self._secret(self._names.cert_secret, _contents(answer, key), kind="kubernetes.io/tls")
        try:
            if secret is None:
                await self._kube.create(kinds.SECRET, body)
            else:
                version = {"metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]}}
                await self._kube.patch(
                    kinds.SECRET,
                    self._names.cert_secret,
                    {**version, "data": body["data"]},
                    namespace=self._names.namespace,
                )
        except (errors.ConflictError, errors.AlreadyExistsError):
            log.info("another operator has renewed the certificate too; the newest one stays in the Secret")
        return fresh

    # ---- what is stored

    async def _read_ca(self) -> bytes:
        where = f"ConfigMap {self._names.namespace}/{self._names.ca_configmap}"
        found = await self._get(kinds.CONFIG_MAP, self._names.ca_configmap)
        text = ((found or {}).get("data") or {}).get(CA) or ""
        if not text.strip():
            raise FatalError(
                f"{where} {'has no ca.crt' if found is not None else 'is missing'}: make it with "
                f"`kubectl create configmap {self._names.ca_configmap} --from-file=ca.crt=<path-to-ca-cert>`"
            )
        try:
            tls.client_context(ca_pem=text)
        except tls.TlsError as problem:
            raise FatalError(f"ca.crt in {where} is not the cluster's CA certificate: {problem}") from problem
        return str(text).encode()

    async def _stored(self) -> Credentials | None:
        """The certificate in the Secret; None if there is none, or one whose time is over."""
        secret = await self._get(kinds.SECRET, self._names.cert_secret)
        if secret is None:
            return None
        where = f"Secret {self._names.namespace}/{self._names.cert_secret}"
        try:
            found = self._usable(secret)
        except ValueError as problem:
            raise FatalError(
                f"{where} cannot be used: {problem}; delete it to register again with a new nonce"
            ) from problem
        if found is not None and found.expires <= self._clock.wall():
            log.warning(
                "the stored certificate has expired, registering again", extra={"expired": _when(found.expires)}
            )
            return None
        return found

    def _usable(self, secret: Object | None) -> Credentials | None:
        """Raises ValueError if it holds something that is not this operator's identity."""
        data = _decoded(secret)
        if not data.get(CERTIFICATE) and not data.get(KEY):
            return None
        found = credentials.read(data.get(CERTIFICATE, b""), data.get(KEY, b""), _joined([self._ca, data.get(CA, b"")]))
        self._check(found)
        return found

    def _check(self, found: Credentials) -> None:
        if (found.who.cluster, found.who.tenant) != (self._cluster, self._tenant):
            raise ValueError(
                f"the certificate is of cluster {found.who.cluster} and tenant {found.who.tenant}, "
                f"the configuration of {self._cluster} and {self._tenant}"
            )

    async def _key(self) -> Ed25519PrivateKey:
        """The stored keypair; a new one is stored before it is used."""
        name, where = self._names.key_secret, f"Secret {self._names.namespace}/{self._names.key_secret}"
        for _ in range(3):
            secret = await self._get(kinds.SECRET, name)
            if secret is not None:
                try:
                    return keys.private_key_from_pem(_decoded(secret).get(PRIVATE, b""))
                except ValueError as problem:
                    raise FatalError(f"{PRIVATE} in {where} cannot be used: {problem}") from problem
            made = keys.generate(self._rng)
            content = {
                PRIVATE: keys.private_to_pem(made).encode(),
                PUBLIC: keys.public_to_pem(keys.public_bytes(made)).encode(),
            }
            with contextlib.suppress(errors.AlreadyExistsError):
                await self._patiently(
                    partial(self._kube.create, kinds.SECRET, self._secret(name, content)), f"create {where}"
                )
            # Read back in any case: what counts is what is stored, whoever stored it.
        raise FatalError(f"{where} was stored but is not there; is somebody deleting it?")

    async def _nonce(self) -> str:
        name, where = self._names.nonce_secret, f"Secret {self._names.namespace}/{self._names.nonce_secret}"
        secret = await self._get(kinds.SECRET, name)
        token = _decoded(secret).get(NONCE, b"").decode("ascii", "replace").strip()
        again = (
            f'make a nonce with `nstance-admin cluster nonce --expiry="3h"` and store it with '
            f"`kubectl create secret generic {name} --from-file={NONCE}=<path-to-nonce>`"
        )
        if not token:
            missing = f"has no {NONCE}" if secret is not None else "is missing"
            raise FatalError(f"{where} {missing}, and the operator is not registered yet: {again}")
        try:
            claims = nonce.unverified(token)
        except nonce.InvalidNonceError as problem:
            raise FatalError(f"{NONCE} in {where} is no registration nonce ({problem.reason}): {again}") from problem
        if not isinstance(claims, nonce.OperatorClaims):
            raise FatalError(f"{NONCE} in {where} is an agent's nonce, expected an operator's: {again}")
        if (claims.cluster, claims.tenant) != (self._cluster, self._tenant):
            raise FatalError(
                f"{NONCE} in {where} is for cluster {claims.cluster} and tenant {claims.tenant}, "
                f"the configuration is for {self._cluster} and {self._tenant}"
            )
        if claims.expires + nonce.LEEWAY_SECONDS <= self._clock.wall():
            raise FatalError(f"{NONCE} in {where} expired at {_when(claims.expires)}: {again}")
        return token

    async def _keep_first(self, answer: Answer, key: Ed25519PrivateKey) -> Credentials:
        pem = keys.private_to_pem(key).encode()
        try:
            fresh = self._accept(answer, pem)
        except ValueError as problem:
            raise FatalError(f"a shard issued a certificate that cannot be used: {problem}") from problem
        name = self._names.cert_secret
        where = f"Secret {self._names.namespace}/{name}"
        body = self._secret(name, _contents(answer, pem), kind="kubernetes.io/tls")
        try:
            await self._patiently(lambda: self._kube.create(kinds.SECRET, body), f"create {where}")
            return fresh
        except errors.AlreadyExistsError:
            theirs = await self._stored()
            if theirs is not None:
                return theirs
        # An old one whose time is over, or an empty one.
        patch = {"data": body["data"]}
        await self._patiently(
            lambda: self._kube.patch(kinds.SECRET, name, patch, namespace=self._names.namespace), f"change {where}"
        )
        return fresh

    def _accept(self, answer: Answer, key_pem: bytes) -> Credentials:
        """Raises ValueError."""
        ca = _joined([self._ca, answer.ca_bundle_pem.encode()])
        found = credentials.read(answer.certificate_pem.encode(), key_pem, ca)
        self._check(found)
        if found.expires <= self._clock.wall():
            raise ValueError(f"it expired at {_when(found.expires)}: the nonce was used long ago, a new one is needed")
        return found

    def _secret(self, name: str, content: Mapping[str, bytes], *, kind: str = "Opaque") -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": kind,
            "metadata": {
                "name": name,
                "namespace": self._names.namespace,
                "labels": {"app.kubernetes.io/managed-by": "nstance-operator"},
            },
            "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
        }

    async def _get(self, kind: kinds.Kind, name: str) -> Object | None:
        """None only if the API server says that there is none."""
        namespace = self._names.namespace
        try:
            return await self._patiently(
                lambda: self._kube.get(kind, name, namespace=namespace), f"read {kind.name} {namespace}/{name}"
            )
        except errors.NotFoundError:
            return None

    async def _patiently(self, ask: Callable[[], Awaitable[T]], what: str) -> T:
        """Until the API server has answered. Raises Fatal if it does not, or will not."""
        end = self._clock.monotonic() + KUBE_SECONDS

        def on_failure(problem: errors.KubeError, failures: int) -> float:
            if self._clock.monotonic() >= end:
                raise FatalError(f"failed to {what}: the Kubernetes API server does not answer: {problem}") from problem
            log.warning("failed to reach the Kubernetes API server, retrying", extra={"reason": problem})
            return self._rng.uniform(0.5, 1.5) * RETRY_SECONDS

        try:
            return await retry(
                ask,
                clock=self._clock,
                expected=(errors.UnavailableError, errors.UnknownOutcomeError, errors.ThrottledError),
                on_failure=on_failure,
            )
        except (errors.ForbiddenError, errors.InvalidError) as problem:
            raise FatalError(f"not allowed to {what}: {problem}; see the manifests in config/rbac") from problem

    async def _register(self, key: Ed25519PrivateKey, token: str) -> Answer:
        where = self._names.namespace
        request = registration_pb2.RegisterOperatorRequest(
            nonce=token,
            public_key_pem=keys.public_to_pem(keys.public_bytes(key)),
            proof=proof.prove_registration(key, cluster=self._cluster, nonce=token),
        )
        try:
            return await registration.register(
                request, self._configuration, ca_pem=self._ca.decode(), clock=self._clock, rng=self._rng
            )
        except registration.NonceRejectedError as problem:
            raise FatalError(
                f"the nonce in Secret {where}/{self._names.nonce_secret} was refused: {problem}; it was used with another "
                "key before, was revoked, or is of another cluster (the server's log says which): make a new one with "
                '`nstance-admin cluster nonce --expiry="3h"`'
            ) from problem
        except registration.UntrustedShardsError as problem:
            raise FatalError(
                f"the shards' certificates are not of the CA in ConfigMap {where}/{self._names.ca_configmap}: {problem}; "
                "store the right ca.crt there"
            ) from problem
        except registration.NoShardAnsweredError as problem:
            raise FatalError(
                f"no shard could be reached to register the operator: {problem}; check registration_addr"
            ) from problem


def _contents(answer: Answer, key_pem: bytes) -> dict[str, bytes]:
    """The bundle lies beside the certificate: after a change of the CA the ConfigMap is only half of the truth."""
    return {CERTIFICATE: answer.certificate_pem.encode(), KEY: key_pem, CA: answer.ca_bundle_pem.encode()}


def _decoded(secret: Object | None) -> dict[str, bytes]:
    """Values that are not base64 are left out; the API server lets none in."""
    found = {}
    for key, value in ((secret or {}).get("data") or {}).items():
        with contextlib.suppress(binascii.Error, ValueError):
            found[key] = base64.b64decode(value, validate=True)
    return found


def _joined(bundles: Iterable[bytes]) -> bytes:
    """Each certificate once."""
    end = b"-----END CERTIFICATE-----"
    parts = [part.strip() for bundle in bundles for part in bundle.split(end) if part.strip()]
    return b"".join(part + b"\n" + end + b"\n" for part in dict.fromkeys(parts))


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
