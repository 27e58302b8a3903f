"""The cluster's CA and the keys that seal secrets: opened at boot, read again while the server runs.

The trap: a bucket that does not answer, or a CA that cannot be read any more, must neither stop the renewal of this
server's certificate nor make a leader unhealthy. The CA that was read last stays in use.

Encryption keys are read with the CA, and again when a secret is sealed with an unknown one, from where the newest
configuration says. So a rotated key needs no restart.
"""

import logging
import os
from collections.abc import Callable

from nstance.authority import errors as authority_errors
from nstance.authority import open as authorities
from nstance.authority.keyset import Authority
from nstance.clock import Clock, Rng
from nstance.config.model.settings import Settings
from nstance.model.ids import ClusterId
from nstance.objects import errors, settle
from nstance.objects.port import ObjectStore
from nstance.pki import fields, names
from nstance.secretstore import errors as secret_errors
from nstance.secretstore import keys, kinds, sealing
from nstance.secretstore import port as secret_port
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.gcp.clients import GoogleClients
from nstance.server.errors import FatalError
from nstance.server.identity.certificate_expiry import CertificateExpiry
from nstance.server.identity.issuer import Issuer, server_identity
from nstance.server.identity.tls_contexts import TlsContexts
from nstance.server.options import Options
from nstance.server.workload import rendering

log = logging.getLogger(__name__)

REFRESH_SECONDS = 10.0  # the shortest time between two readings of the keys for secrets that cannot be opened
RETRYABLE = (errors.StorageError, secret_errors.SecretError, TimeoutError)


class Trust:
    def __init__(self, store: ObjectStore, settings: Settings, options: Options, *, clock: Clock, rng: Rng) -> None:
        """`store` is the cluster's."""
        self._store = store
        self._settings = settings
        self._newest: Callable[[], Settings] = lambda: settings
        self._cluster = ClusterId(settings.cluster.id)
        self._insecure_dev = options.insecure_dev
        self._check_seconds = options.waits.ca_check
        self._clock = clock
        self._rng = rng
        self._clients = keys.KeyClients(
            aws=AwsClients(region=_region(settings), clock=clock, rng=rng, environment=os.environ),
            google=GoogleClients(project=_project(settings), clock=clock, rng=rng, environment=os.environ),
        )
        self._warned = False
        self._refreshed: tuple[float, sealing.Sealer] | None = None  # when keys were last read again

    def follow(self, newest: Callable[[], Settings]) -> None:
        """From now on the newest configuration says where the keys are. The data key of a KMS is rotated there."""
        self._newest = newest

    async def close(self) -> None:
        await self._clients.aws.close()
        await self._clients.google.close()

    async def read(self) -> Authority:
        """Raises FatalError, or one of `RETRYABLE`."""
        try:
            vault = authorities.open_vault(
                self._store,
                keyring=await self._keyring(),
                cluster=self._cluster,
                rng=self._rng,
                insecure_dev=self._insecure_dev,
            )
            subject, life = _subject(self._settings), self._settings.ca.ttl
            return await authorities.open_authority(
                vault, self._paths(), clock=self._clock, create=True, subject=subject, life=life
            )
        except secret_errors.BadKeyError as problem:
            raise FatalError(f"failed to read the encryption key: {problem}") from problem
        except authority_errors.AuthorityError as problem:
            raise FatalError(str(problem)) from problem

    async def secret_store(self) -> secret_port.SecretStore:
        """Raises FatalError, or one of `RETRYABLE`. Nothing is created."""
        settings = self._settings.cluster.secrets
        sealed = settings.provider == kinds.StoreKind.OBJECT_STORAGE.value
        try:
            sealer = await self._sealer() if sealed else None
        except secret_errors.BadKeyError as problem:
            raise FatalError(f"failed to read the encryption key: {problem}") from problem
        try:
            return kinds.open_store(
                settings.provider,
                kinds.Backends(objects=self._store, clients=self._clients, environment=os.environ, rng=self._rng),
                # Of other stores the prefix is a directory, or the beginning of names.
                prefix=self._paths().secret_prefix if sealed else settings.prefix,
                cluster=self._cluster,
                sealer=sealer,
                refresh=self._refresh,
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
            await clock.sleep(self._check_seconds)
            authority = issuer.authority
            try:
                authority = await self.read()
            except (FatalError, *RETRYABLE) as problem:
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

    async def _keyring(self) -> sealing.Keyring | None:
        """None only with --insecure-dev and without a key. Raises SecretError."""
        settings = self._settings.cluster.secrets
        configured = self._newest().cluster.secrets.encryption_key
        location = configured or keys.stored_key(settings.provider, kinds.cloud_prefix(settings.prefix, self._cluster))
        if location is None:
            return None
        try:
            return await self._read_keyring(location)
        except secret_errors.NotFoundError as problem:
            if configured is not None:
                raise
            await self._create_key(location, problem)
            return await self._read_keyring(location)
        except secret_errors.BadKeyError as problem:
            if not self._insecure_dev:
                raise
            if not self._warned:
                log.warning("no encryption key, secrets are stored unencrypted: %s", problem)
            self._warned = True
            return None

    async def _read_keyring(self, location: keys.Location) -> sealing.Keyring:
        old = self._newest().cluster.secrets.old_encryption_keys
        return await keys.read_keyring(location, old, environment=os.environ, clients=self._clients)

    async def _create_key(self, location: keys.Location, problem: secret_errors.NotFoundError) -> None:
        """For the first server of a cluster. A CA that exists was sealed with another key: a new one cannot open it."""
        sealed_ca = self._paths().sealed_ca
        if await settle.read(self._store, sealed_ca) is not None:
            raise secret_errors.PermanentError(
                f"{problem}, and {sealed_ca} was sealed with it; restore the key, "
                "or correct cluster.secrets.prefix and region"
            ) from problem
        log.info("encryption key created", extra={"store": location.provider, "key": location.source})
        await keys.create_stored_key(location, self._clients)

    async def _sealer(self) -> sealing.Sealer:
        return kinds.sealer(await self._keyring(), insecure_dev=self._insecure_dev)

    async def _refresh(self) -> sealing.Sealer:
        """The keys as they are now, or as they were a moment ago: many secrets may be asked for at once."""
        now = self._clock.monotonic()
        if self._refreshed is None or now - self._refreshed[0] >= REFRESH_SECONDS:
            self._refreshed = now, await self._sealer()
        return self._refreshed[1]

    def _paths(self) -> authorities.Places:
        """The CA and the nonce key are sealed in object storage, whichever store holds other secrets."""
        cluster = self._settings.cluster
        if cluster.secrets.provider != kinds.StoreKind.OBJECT_STORAGE.value:
            return authorities.Places(cluster.storage.prefix)
        return authorities.Places(cluster.storage.prefix, cluster.secrets.prefix)


def _region(settings: Settings) -> str:
    infra = settings.shard.infra
    return settings.cluster.secrets.region or (infra.region if infra.provider == "aws" else "")


def _project(settings: Settings) -> str:
    infra = settings.shard.infra
    found = settings.cluster.secrets.project_id or (infra.provider == "gcp" and infra.options.get("project_id"))
    return str(found or "")


def _subject(settings: Settings) -> fields.Subject | None:
    """From `certificates.ca`."""
    if not settings.ca.cn and not settings.ca.organization:
        return None
    return rendering.workload(settings.ca, {"Cluster": {"ID": settings.cluster.id}}).subject
