"""The webhook's serving certificate: mounted, or issued here and kept in a Secret.

Issued ones come from a small CA of their own, which the API server trusts for this webhook and nothing else. All replicas
share the Secret: one issues or renews it, the others read it. The trap: the API server must trust a new CA before any
replica serves with it, so the bundle also holds the old one until that expires.
"""

import asyncio
import base64
import ipaddress
import logging
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cryptography import x509

from nstance.clock import Clock, Rng
from nstance.kube import errors, kinds
from nstance.kube.port import Kube, Object, find
from nstance.model.ids import ClusterId
from nstance.operator import secrets
from nstance.operator.options import Options
from nstance.pki import ca, fields, keys
from nstance.tasks.refresher import refresh_forever
from nstance.wire import tls

log = logging.getLogger(__name__)

SECRET = "nstance-operator-webhook-cert"
SERVICE = "nstance-operator-webhook"
CERTIFICATE_LIFE_SECONDS = 90 * ca.DAY
CHECK_SECONDS = 300.0
RETRY_SECONDS = 5.0
RENEW_AFTER = 2 / 3  # of the lifetime
ATTEMPTS = 3
ALPN = "http/1.1"


@dataclass(frozen=True, slots=True)
class KeyPair:
    certificate_pem: str
    key_pem: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredCertificate:
    """The content of the Secret."""

    authority: ca.CertificateAuthority
    bundle: str  # newest first
    pair: KeyPair
    names: frozenset[str]


class WebhookCertificate:
    def __init__(
        self, kube: Kube, options: Options, *, namespace: str, cluster: ClusterId, clock: Clock, rng: Rng
    ) -> None:
        self._kube = kube
        self._options = options
        self._namespace = namespace
        self._cluster = cluster
        self._clock = clock
        self._rng = rng
        self._pair: KeyPair | None = None
        self._last_problem = ""
        self.context: ssl.SSLContext | None = None  # None: there is no certificate yet

    async def run(self) -> None:
        """Until it is cancelled."""
        await refresh_forever(
            self._refresh,
            clock=self._clock,
            interval=lambda: CHECK_SECONDS * self._rng.uniform(0.8, 1.2),
            expected=(errors.KubeError, OSError, ValueError),
            on_failure=self._on_failure,
        )

    async def _refresh(self) -> None:
        pair = await asyncio.to_thread(self._read_mounted)
        if pair is None:
            pair = await self._ensure()
        if pair != self._pair:
            self.context = _server_context(pair)
            self._pair = pair
            log.info("webhook certificate loaded")
        self._last_problem = ""

    def _on_failure(self, problem: Exception, failures: int) -> float:
        if str(problem) != self._last_problem:
            self._last_problem = str(problem)
            log.error("failed to load webhook certificate, retrying", extra={"reason": problem})
        return RETRY_SECONDS * self._rng.uniform(0.8, 1.2)

    def _read_mounted(self) -> KeyPair | None:
        mounted = self._options.webhook_certificates
        try:
            return KeyPair((mounted / "tls.crt").read_text(), (mounted / "tls.key").read_text())
        except FileNotFoundError:
            return None

    async def _ensure(self) -> KeyPair:
        """The Secret's certificate, issued or renewed if needed; the API server gets its CA first."""
        # Without one the API server calls no webhook; an administrator may want that.
        configuration = await find(self._kube, kinds.VALIDATING_WEBHOOK, self._options.webhook_configuration)
        names = self._names(configuration)
        for _ in range(ATTEMPTS):
            secret = await find(self._kube, kinds.SECRET, SECRET, namespace=self._namespace)
            stored = _load(secret)
            current = stored if stored is not None and self._is_current(stored, names) else self._issue(stored, names)
            if current is not stored:
                try:
                    await self._store(secret, current)
                except (errors.AlreadyExistsError, errors.ConflictError):
                    continue  # another replica was faster: use its certificate
            await self._publish(configuration, current.bundle)
            return current.pair
        raise errors.ConflictError(f"Secret {self._namespace}/{SECRET} keeps changing; check what else writes it")

    def _is_current(self, stored: StoredCertificate, names: frozenset[str]) -> bool:
        leaf = ca.load_certificate(stored.pair.certificate_pem)
        return stored.names == names and not self._is_due(stored.authority.certificate) and not self._is_due(leaf)

    def _issue(self, stored: StoredCertificate | None, names: frozenset[str]) -> StoredCertificate:
        """From the stored CA, or from a new one if that is due for renewal."""
        now = self._clock.wall()
        if stored is not None and not self._is_due(stored.authority.certificate):
            authority, bundle = stored.authority, stored.bundle
        else:
            old = stored.bundle if stored is not None and stored.authority.expires > now else ""
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
                life=CERTIFICATE_LIFE_SECONDS,
            ),
            keys.public_bytes(key),
            serial=ca.new_serial(self._rng),
            issued=now,
        )
        return StoredCertificate(authority, bundle, KeyPair(issued.pem, keys.private_to_pem(key)), names)

    def _is_due(self, certificate: x509.Certificate) -> bool:
        begins, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
        return self._clock.wall() >= begins + RENEW_AFTER * (ends - begins)

    async def _store(self, secret: Object | None, stored: StoredCertificate) -> None:
        content = {
            "ca.crt": stored.bundle,
            "ca.key": keys.private_to_pem(stored.authority.key),
            "tls.crt": stored.pair.certificate_pem,
            "tls.key": stored.pair.key_pem,
        }
        encoded = {key: value.encode() for key, value in content.items()}
        body = secrets.manifest(SECRET, self._namespace, encoded, kind=secrets.TLS)
        await secrets.write(self._kube, body, seen=secret)

    async def _publish(self, configuration: Object | None, bundle: str) -> None:
        """Writes the CA bundle into the ValidatingWebhookConfiguration, and the operator's namespace if none is selected:
        what other operators guard must not depend on this one."""
        encoded = base64.b64encode(bundle.encode()).decode()
        own = {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}}
        hooks = (configuration or {}).get("webhooks") or []
        updated = [
            {
                **hook,
                "clientConfig": {**hook["clientConfig"], "caBundle": encoded},
                "namespaceSelector": hook.get("namespaceSelector") or own,
            }
            for hook in hooks
        ]
        if configuration is None or updated == hooks:
            return
        await self._kube.replace(kinds.VALIDATING_WEBHOOK, {**configuration, "webhooks": updated})
        log.info("webhook CA published", extra={"configuration": self._options.webhook_configuration})

    def _names(self, configuration: Object | None) -> frozenset[str]:
        """The names under which the API server calls the webhook: a Service's, or the host of a URL."""
        found: set[str] = set()
        for hook in (configuration or {}).get("webhooks") or []:
            client = hook["clientConfig"]
            if client.get("service"):
                found.update(_service_names(client["service"]["name"], client["service"]["namespace"]))
            else:
                found.add(urlsplit(client.get("url") or "").hostname or "localhost")
        return frozenset(found or _service_names(SERVICE, self._namespace))


def _load(secret: Object | None) -> StoredCertificate | None:
    """None also for damaged content: only this webhook depends on it, so it is replaced."""
    if secret is None:
        return None
    try:
        data = {key: value.decode() for key, value in secrets.decode(secret).items()}
        authority = ca.load_ca(data["ca.crt"], data["ca.key"])
        pair = KeyPair(data["tls.crt"], data["tls.key"])
        _server_context(pair)
        leaf = ca.load_certificate(pair.certificate_pem)
        leaf.verify_directly_issued_by(authority.certificate)
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
        return StoredCertificate(authority, data["ca.crt"], pair, frozenset(names))
    except Exception as problem:  # whatever a person or an old version stored there
        log.warning("webhook Secret not usable, replacing it", extra={"reason": type(problem).__name__})
        return None


def _server_context(pair: KeyPair) -> ssl.SSLContext:
    return tls.server_context(
        certificate_pem=pair.certificate_pem, key_pem=pair.key_pem.encode(), ca_pem=None, alpn=ALPN
    )


def _service_names(name: str, namespace: str) -> list[str]:
    return [f"{name}.{namespace}{rest}" for rest in ("", ".svc", ".svc.cluster.local")]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
