"""The cluster's CA, and the keys that seal it and everybody's secrets: opened at boot, read again while the server runs.

The trap: what was opened at boot goes on. A bucket that does not answer, or a CA that cannot be read any more, must
neither end the renewal of this server's certificate nor make a leading server unwell.
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

CHECK_SECONDS = 300.0  # well below the notice with which keys are rotated


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
        """Raises Fatal, and storage errors after which it may be asked for again."""
        try:
            return await authorities.open_authority(
                self._store,
                self._places(),
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
        told = self._settings.cluster.secrets
        sealed = told.provider == kinds.StoreKind.OBJECT_STORAGE.value
        try:
            return kinds.open_store(
                told.provider,
                objects=self._store,
                # A directory, or the beginning of variables' names, stands for itself.
                prefix=self._places().secret_prefix if sealed else told.prefix,
                sealer=kinds.sealer(self._keyring(), insecure_dev=self._insecure_dev) if sealed else None,
                cluster=ClusterId(self._settings.cluster.id),
                rng=self._rng,
                environment=os.environ,
            )
        except secret_errors.SecretError as problem:
            raise FatalError(f"the secret store cannot be opened: {problem}") from problem

    async def keep(
        self, issuer: Issuer, contexts: TlsContexts, who: names.Server, *, hosts: list[str], expiries: CertificateExpiry
    ) -> None:
        """For ever: a new CA or nonce key is adopted; this server's certificate is renewed at two thirds of its life. The
        key stays, because peers know this server by it."""
        clock = self._clock
        due = clock.wall() + (contexts.identity.expires - clock.wall()) * 2 / 3
        while True:
            expiries.look(server=contexts.identity.expires, ca=issuer.authority.cas[0].ca.expires)
            await clock.sleep(CHECK_SECONDS)
            authority = issuer.authority
            try:
                authority = await self.read()
            except (FatalError, errors.StorageError, TimeoutError) as problem:
                log.error(
                    "the cluster's CA could not be read again, the known one stays", extra={"error": str(problem)}
                )
            changed = authority.bundle != contexts.ca_pem
            issuer.authority = authority
            if changed or clock.wall() >= due:
                fresh = server_identity(
                    authority, who, hosts=hosts, clock=clock, rng=self._rng, key_pem=contexts.identity.key_pem
                )
                contexts.renew(fresh, authority.bundle)
                due = clock.wall() + (fresh.expires - clock.wall()) * 2 / 3
                log.info("this server's certificate was renewed")

    def _keyring(self) -> sealing.Keyring | None:
        told = self._settings.cluster.secrets
        if told.encryption_key is None:
            return None
        try:
            current, *old = (
                key_sources.read_key(source.provider, source.source, environment=os.environ)
                for source in (told.encryption_key, *told.old_encryption_keys)
            )
        except secret_errors.SecretError as problem:
            if self._insecure_dev:
                if not self._warned:
                    log.warning("no encryption key, secrets are stored in clear: %s", problem)
                self._warned = True
                return None
            raise FatalError(f"the encryption key cannot be read: {problem}") from problem
        return sealing.Keyring(current, tuple(old))

    def _places(self) -> authorities.Places:
        """The CA and the nonce key lie sealed in object storage, wherever other secrets do."""
        told = self._settings.cluster
        if told.secrets.provider != kinds.StoreKind.OBJECT_STORAGE.value:
            return authorities.Places(told.storage.prefix)
        return authorities.Places(told.storage.prefix, told.secrets.prefix)


def _subject(settings: Settings) -> fields.Subject | None:
    """`certificates.ca` shapes the CA's subject."""
    if not settings.ca.cn and not settings.ca.organization:
        return None
    return rendering.workload(settings.ca, {"Cluster": {"ID": settings.cluster.id}}).subject
