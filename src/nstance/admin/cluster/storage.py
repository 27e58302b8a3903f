"""Opens a cluster's storage from the flags of a command."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from nstance.admin import errors
from nstance.admin.cluster.dry_run_store import DryRunStore
from nstance.admin.options import OBJECT_STORAGE, Target
from nstance.authority import errors as authority
from nstance.authority import keyset, operators, vault
from nstance.authority import open as opening
from nstance.clock import Clock, Rng, SystemClock, SystemRng
from nstance.config import storage_keys
from nstance.model.ids import ClusterId, ShardId
from nstance.objects import open as stores
from nstance.objects.journal import Journal
from nstance.objects.port import ObjectStore
from nstance.secretstore import keys, kinds, port, sealing
from nstance.secretstore.aws.clients import AwsClients
from nstance.secretstore.gcp.clients import GoogleClients


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStorage:
    target: Target
    store: ObjectStore
    places: opening.Places
    clock: Clock
    rng: Rng
    clients: keys.KeyClients

    async def cluster(self) -> ClusterId:
        found = await self.owner()
        if found is None:
            raise errors.CommandError(
                f"there is no {self.places.ca_certificate} in {self.store!r} to read the cluster's name from; "
                "give --cluster-id, or correct --storage-bucket, --storage-prefix or --prefix"
            )
        return found

    async def owner(self) -> ClusterId | None:
        """The cluster of this storage; None if unknown. A wrong --cluster-id is rejected: secrets that are encrypted with
        it could not be read by any server."""
        expected = self.target.cluster
        try:
            found = await opening.find_cluster(self.store, self.places)
        except authority.NotFoundError:
            return expected
        except authority.UnreadableError:
            if expected is None:
                raise
            return expected
        if expected not in (None, found):
            raise errors.CommandError(f"{self.store!r} belongs to cluster {found}, but --cluster-id is {expected}")
        return found

    def journal(self, shard: ShardId) -> Journal:
        return Journal(
            self.store,
            journal_prefix=storage_keys.journal_prefix(shard),
            snapshot_prefix=storage_keys.snapshot_prefix(shard),
            clock=self.clock,
        )

    async def authority(self) -> keyset.Authority:
        return await opening.open_authority(await self.vault(), self.places, clock=self.clock, create=False)

    async def vault(self) -> vault.Vault:
        keyring, insecure_dev = await self._keyring(), self.target.insecure_dev
        cluster = await self.cluster()
        return opening.open_vault(self.store, keyring=keyring, insecure_dev=insecure_dev, cluster=cluster, rng=self.rng)

    async def operators(self) -> operators.Operators:
        prefix, cluster = self.places.prefix, await self.cluster()
        return operators.Operators(self.store, prefix=prefix, cluster=cluster, clock=self.clock, rng=self.rng)

    async def secrets(self) -> port.SecretStore:
        target = self.target
        sealed = target.secrets == OBJECT_STORAGE
        prefix = self.places.secret_prefix if sealed else target.secrets_prefix or ""
        needs_cluster = sealed or (self._is_cloud and not prefix)
        return kinds.open_store(
            target.secrets,
            kinds.Backends(objects=self.store, clients=self.clients, environment=os.environ, rng=self.rng),
            prefix=prefix,
            cluster=await self.cluster() if needs_cluster else ClusterId(""),
            sealer=kinds.sealer(await self._keyring(), insecure_dev=target.insecure_dev) if sealed else None,
        )

    @property
    def _is_cloud(self) -> bool:
        """Whether the secret store is one that holds the encryption key itself."""
        return keys.stored_key(self.target.secrets, "") is not None

    async def _keyring(self) -> sealing.Keyring | None:
        key: keys.Location = self.target.key
        is_default = key.provider == "env" and not os.environ.get(key.source or keys.DEFAULT_VARIABLE)
        if is_default and not key.source and self._is_cloud:
            prefix = self.target.secrets_prefix or kinds.cloud_prefix("", await self.cluster())
            key = keys.stored_key(self.target.secrets, prefix) or key
        elif is_default and self.target.insecure_dev:
            return None
        return await keys.read_keyring(key, self.target.old_keys, environment=os.environ, clients=self.clients)


@contextlib.asynccontextmanager
async def open_storage(target: Target, *, create: bool = False) -> AsyncIterator[ClusterStorage]:
    """`create`: for commands that may be the first to write to a directory. For others a missing one is a typo. A dry run
    does not create it but sees an empty one."""
    is_missing = target.provider == "file" and not os.path.isdir(target.bucket)  # noqa: ASYNC240
    if is_missing and not create:
        raise errors.CommandError(
            f"there is no directory {target.bucket!r}; set --storage-bucket to the servers' --bucket"
        )
    try:
        cluster_prefix = storage_keys.secret_prefix(prefix=target.cluster_prefix, secrets="")
        sealed = target.secrets == OBJECT_STORAGE and target.secrets_prefix is not None
        secrets_prefix = storage_keys.secret_prefix(prefix="", secrets=target.secrets_prefix or "") if sealed else None
    except ValueError as error:
        raise errors.CommandError(str(error)) from error
    places = opening.Places(cluster_prefix, storage_keys.SECRETS if secrets_prefix is None else secrets_prefix)
    provider = "memory" if is_missing and target.dry_run else target.provider
    store = stores.open_store(provider, bucket=target.bucket, prefix=target.prefix)
    if target.dry_run:
        store = DryRunStore(store)
    clock, rng = SystemClock(), SystemRng()
    clients = keys.KeyClients(
        aws=AwsClients(region="", clock=clock, rng=rng, environment=os.environ),
        google=GoogleClients(project=target.secrets_project, clock=clock, rng=rng, environment=os.environ),
    )
    try:
        yield ClusterStorage(target=target, store=store, places=places, clock=clock, rng=rng, clients=clients)
    finally:
        await clients.aws.close()
        await clients.google.close()
        await store.close()
