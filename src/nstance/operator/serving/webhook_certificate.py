"""The webhook's serving certificate: mounted, or made here and kept in a Secret.

Made ones come from a small CA of their own, which the API server is told to believe for this webhook and for nothing
else. All replicas share the Secret: one makes or renews it, the others read it. The trap: a new CA must be believed before
anybody serves with it, so the bundle holds the old one too as long as it lives.
"""

import asyncio
import base64
import ipaddress
import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from nstance.clock import Clock, Rng
from nstance.kube import errors, kinds
from nstance.kube.port import Kube, Object
from nstance.model.ids import ClusterId
from nstance.pki import ca, fields, keys
from nstance.tasks.refresher import refresh_forever
from nstance.wire import tls

log = logging.getLogger(__name__)

SECRET = "nstance-operator-webhook-cert"
SERVICE = "nstance-operator-webhook"
CERTIFICATE_LIFE = 90 * ca.DAY
LOOK_SECONDS = 300.0
RETRY_SECONDS = 5.0
RENEW_AFTER = 2 / 3
ALPN = "http/1.1"


@dataclass(frozen=True, slots=True)
class KeyPair:
    certificate_pem: str
    key_pem: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredCertificate:
    """What is in the Secret."""

    authority: ca.CertificateAuthority
    bundle: str  # newest first
    pair: KeyPair
    names: frozenset[str]


class WebhookCertificate:
    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        cluster: ClusterId,
        configuration: str,
        mounted: Path,
        clock: Clock,
        rng: Rng,
    ) -> None:
        """`configuration` names the ValidatingWebhookConfiguration that is told the CA."""
        self._kube = kube
        self._namespace = namespace
        self._cluster = cluster
        self._configuration_name = configuration
        self._mounted = mounted
        self._clock = clock
        self._rng = rng
        self._pair: KeyPair | None = None
        self._complaint = ""
        self.context: ssl.SSLContext | None = None  # None: there is no certificate yet

    async def run(self) -> None:
        """Until it is cancelled."""
        await refresh_forever(
            self._refresh,
            clock=self._clock,
            interval=lambda: LOOK_SECONDS * self._rng.uniform(0.8, 1.2),
            expected=(errors.KubeError, OSError, ValueError),
            on_failure=self._on_failure,
        )

    async def _refresh(self) -> None:
        pair = await asyncio.to_thread(self._read_mounted)
        if pair is None:
            pair = await self._keep()
        if pair != self._pair:
            self.context = tls.server_context(
                certificate_pem=pair.certificate_pem, key_pem=pair.key_pem.encode(), ca_pem=None, alpn=ALPN
            )
            self._pair = pair
            log.info("webhook certificate loaded")
        self._complaint = ""

    def _on_failure(self, problem: Exception, failures: int) -> float:
        if str(problem) != self._complaint:
            self._complaint = str(problem)
            log.error("failed to load the webhook certificate", extra={"reason": problem})
        return RETRY_SECONDS * self._rng.uniform(0.8, 1.2)

    def _read_mounted(self) -> KeyPair | None:
        try:
            return KeyPair((self._mounted / "tls.crt").read_text(), (self._mounted / "tls.key").read_text())
        except FileNotFoundError:
            return None

    async def _keep(self) -> KeyPair:
        """The Secret's certificate, made or renewed if need be; the API server is told of its CA first."""
        configuration = await self._configuration()
        names = self._names(configuration)
        for _ in range(3):
            secret = await self._secret()
            kept = self._load(secret)
            wanted = self._renewed(kept, names)
            if wanted != kept:
                try:
                    await self._store(secret, wanted)
                except (errors.AlreadyExistsError, errors.ConflictError):
                    continue  # another replica was faster: take its
            await self._tell(configuration, wanted.bundle)
            return wanted.pair
        raise errors.ConflictError(f"Secret {self._namespace}/{SECRET} is changed by others all the time")

    def _renewed(self, kept: StoredCertificate | None, names: frozenset[str]) -> StoredCertificate:
        now = self._clock.wall()
        if kept is not None and not self._due(kept.authority.certificate) and kept.names == names:
            leaf = ca.load_certificate(kept.pair.certificate_pem)
            if not self._due(leaf):
                return kept
        authority, bundle = (kept.authority, kept.bundle) if kept is not None else (None, "")
        if authority is None or self._due(authority.certificate):
            old = bundle if authority is not None and authority.expires > now else ""
            subject = fields.Subject(cn="nstance-operator webhook CA")
            authority = ca.new_ca(self._cluster, now=now, rng=self._rng, subject=subject)
            bundle = authority.pem + old
        key = keys.generate(self._rng)
        issued = authority.issue_workload(
            ca.WorkloadSpec(
                usages=frozenset({ca.Usage.SERVER}),
                subject=fields.Subject(cn=SERVICE),
                alternatives=fields.Alternatives(
                    dns=tuple(sorted(name for name in names if not _is_address(name))),
                    ip=tuple(sorted(name for name in names if _is_address(name))),
                ),
                life=CERTIFICATE_LIFE,
            ),
            keys.public_bytes(key),
            serial=ca.new_serial(self._rng),
            issued=now,
        )
        return StoredCertificate(authority, bundle, KeyPair(issued.pem, keys.private_to_pem(key)), names)

    def _due(self, certificate: x509.Certificate) -> bool:
        begins, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
        return self._clock.wall() >= begins + RENEW_AFTER * (ends - begins)

    async def _secret(self) -> Object | None:
        try:
            return await self._kube.get(kinds.SECRET, SECRET, namespace=self._namespace)
        except errors.NotFoundError:
            return None

    def _load(self, secret: Object | None) -> StoredCertificate | None:
        """None also for one that is damaged: nothing but this webhook depends on it, so it is made anew."""
        if secret is None:
            return None
        try:
            data = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
            authority = ca.load_ca(data["ca.crt"], data["ca.key"])
            pair = KeyPair(data["tls.crt"], data["tls.key"])
            tls.server_context(certificate_pem=pair.certificate_pem, key_pem=pair.key_pem.encode(), ca_pem=None)
            leaf = ca.load_certificate(pair.certificate_pem)
            leaf.verify_directly_issued_by(authority.certificate)
            told = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = [*told.get_values_for_type(x509.DNSName), *map(str, told.get_values_for_type(x509.IPAddress))]
            return StoredCertificate(authority, data["ca.crt"], pair, frozenset(names))
        except Exception as problem:  # whatever a hand or an old version has left there
            log.warning("the webhook's Secret is of no use and made anew", extra={"reason": type(problem).__name__})
            return None

    async def _store(self, secret: Object | None, kept: StoredCertificate) -> None:
        content = {
            "ca.crt": kept.bundle,
            "ca.key": keys.private_to_pem(kept.authority.key),
            "tls.crt": kept.pair.certificate_pem,
            "tls.key": kept.pair.key_pem,
        }
        data = {key: base64.b64encode(value.encode()).decode() for key, value in content.items()}
        if secret is None:
            body: Object = {
                "type": "kubernetes.io/tls",
                "metadata": {
                    "name": SECRET,
                    "namespace": self._namespace,
                    "labels": {"app.kubernetes.io/managed-by": "nstance-operator"},
                },
                "data": data,
            }
            await self._kube.create(kinds.SECRET, body, namespace=self._namespace)
        else:
            version = {"resourceVersion": secret["metadata"]["resourceVersion"]}
            await self._kube.patch(kinds.SECRET, SECRET, {"metadata": version, "data": data}, namespace=self._namespace)

    async def _configuration(self) -> Object | None:
        """Without one the API server asks nobody; that is an administrator's choice."""
        try:
            return await self._kube.get(kinds.VALIDATING_WEBHOOK, self._configuration_name)
        except errors.NotFoundError:
            return None

    async def _tell(self, configuration: Object | None, bundle: str) -> None:
        wanted = base64.b64encode(bundle.encode()).decode()
        hooks = (configuration or {}).get("webhooks") or []
        if configuration is None or all(hook["clientConfig"].get("caBundle") == wanted for hook in hooks):
            return
        told = [{**hook, "clientConfig": {**hook["clientConfig"], "caBundle": wanted}} for hook in hooks]
        await self._kube.replace(kinds.VALIDATING_WEBHOOK, {**configuration, "webhooks": told})
        log.info("the API server knows the webhook's CA")

    def _names(self, configuration: Object | None) -> frozenset[str]:
        """Under which names the API server calls us: a Service's, or the host of a URL."""
        found: set[str] = set()
        for hook in (configuration or {}).get("webhooks") or []:
            client = hook["clientConfig"]
            if client.get("service"):
                found.update(_service_names(client["service"]["name"], client["service"]["namespace"]))
            else:
                found.add(urlsplit(client.get("url") or "").hostname or "localhost")
        return frozenset(found or _service_names(SERVICE, self._namespace))


def _service_names(name: str, namespace: str) -> list[str]:
    return [f"{name}.{namespace}{rest}" for rest in ("", ".svc", ".svc.cluster.local")]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
