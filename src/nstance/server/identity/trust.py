"""The cluster's CA and the keys that seal secrets: opened at boot, read again while the server runs.

The trap: a bucket that does not answer, or a CA that cannot be read any more, must neither stop the renewal of this
server's certificate nor make a leader unhealthy. The CA that was read last stays in use.
"""

import logging
import os

from nstance.authority import errors as authority_errors
from nstance.authority import open as authorities
from nstance.authority.keyset import Authority
from nstance.clock import Clock, Rng
from nstance.config.model.settings import Settings
from nstance.model.ids import ClusterId
from nstance.objects import errors
from nstance.objects.port import ObjectStore
from nstance.pki import fields, names
from nstance.secretstore import errors as secret_errors
from nstance.secretstore import keys as key_sources
from nstance.secretstore import kinds, sealing
from nstance.secretstore import port as secret_port
from nstance.server.errors import FatalError
from nstance.server.identity.certificate_expiry import CertificateExpiry
from nstance.server.identity.issuer import Issuer, server_identity
from nstance.server.identity.tls_contexts import TlsContexts
from nstance.server.workload import rendering

log = logging.getLogger(__name__)

CHECK_SECONDS = 300.0  # well below the time between publishing a new key and using it


class Trust:
    def __init__(self, store: ObjectStore, settings: Settings, *, insecure_dev: bool, clock: Clock, rng: Rng) -> None:
        """`store` is the cluster's."""
        self._store = store
        self._settings = settings
        self._insecure_dev = insecure_dev
        self._clock = clock
        self._rng = rng
        self._warned = False

    async def read(self) -> Authority:
        """Raises FatalError, or a storage error after which a retry may help."""
        try:
            return await authorities.open_authority(
                self._store,
                self._paths(),
                keyring=self._keyring(),
                cluster=ClusterId(self._settings.cluster.id),
                clock=self._clock,
                rng=self._rng,
                create=True,
                insecure_dev=self._insecure_dev,
                subject=_subject(self._settings),
                life=self._settings.ca.ttl,
            )
        except (authority_errors.AuthorityError, secret_errors.SecretError) as problem:
            raise FatalError(str(problem)) from problem

    def secret_store(self) -> secret_port.SecretStore:
        settings = self._settings.cluster.secrets
        sealed = settings.provider == kinds.StoreKind.OBJECT_STORAGE.value
        try:
            return kinds.open_store(
                settings.provider,
                objects=self._store,
                # Of other stores the prefix is a directory, or the beginning of variables' names.
                prefix=self._paths().secret_prefix if sealed else settings.prefix,
                sealer=kinds.sealer(self._keyring(), insecure_dev=self._insecure_dev) if sealed else None,
                cluster=ClusterId(self._settings.cluster.id),
                rng=self._rng,
                environment=os.environ,
            )
        except secret_errors.SecretError as problem:
            raise FatalError(f"failed to open the secret store: {problem}") from problem

    async def run(
        self, issuer: Issuer, contexts: TlsContexts, name: names.Server, *, hosts: list[str], expiry: CertificateExpiry
    ) -> None:
        """Adopts a new CA or nonce key, and renews this server's certificate at two thirds of its life. The server's key
        stays, because peers know the server by it."""
        clock = self._clock
        due = clock.wall() + (contexts.identity.expires - clock.wall()) * 2 / 3
        while True:
            expiry.check(server=contexts.identity.expires, ca=issuer.authority.cas[0].ca.expires)
            await clock.sleep(CHECK_SECONDS)
            authority = issuer.authority
            try:
                authority = await self.read()
            except (FatalError, errors.StorageError, TimeoutError) as problem:
                log.error("failed to read the cluster's CA: the known one stays", extra={"error": str(problem)})
            changed = authority.bundle != contexts.ca_pem
            issuer.authority = authority
            if changed or clock.wall() >= due:
                identity = server_identity(
                    authority, name, hosts=hosts, clock=clock, rng=self._rng, key_pem=contexts.identity.key_pem
                )
                contexts.renew(identity, authority.bundle)
                due = clock.wall() + (identity.expires - clock.wall()) * 2 / 3
                log.info("server certificate renewed")

    def _keyring(self) -> sealing.Keyring | None:
        settings = self._settings.cluster.secrets
        if settings.encryption_key is None:
            return None
        try:
            current, *old = (
                key_sources.read_key(source.provider, source.source, environment=os.environ)
                for source in (settings.encryption_key, *settings.old_encryption_keys)
            )
        except secret_errors.SecretError as problem:
            if self._insecure_dev:
                if not self._warned:
                    log.warning("no encryption key, secrets are stored unencrypted: %s", problem)
                self._warned = True
                return None
            raise FatalError(f"failed to read the encryption key: {problem}") from problem
        return sealing.Keyring(current, tuple(old))

    def _paths(self) -> authorities.Places:
        """The CA and the nonce key are sealed in object storage, whichever store holds other secrets."""
        cluster = self._settings.cluster
        if cluster.secrets.provider != kinds.StoreKind.OBJECT_STORAGE.value:
            return authorities.Places(cluster.storage.prefix)
        return authorities.Places(cluster.storage.prefix, cluster.secrets.prefix)


def _subject(settings: Settings) -> fields.Subject | None:
    """From `certificates.ca`."""
    if not settings.ca.cn and not settings.ca.organization:
        return None
    return rendering.workload(settings.ca, {"Cluster": {"ID": settings.cluster.id}}).subject
