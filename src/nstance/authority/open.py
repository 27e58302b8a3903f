"""Opening the cluster's authority, and creating it on the first server.

`ca.sealed` is the truth about the CA; `ca.crt` is derived from it for people and tools. Both are created without a
leader: the server that loses the race adopts the winner's. The trap: a new CA over one that cannot be read would cut off
every VM of the cluster, so anything but a clear "there is none, and never was" is fatal.
"""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from nstance.authority import errors, keyset
from nstance.authority.vault import Held, Vault
from nstance.clock import Clock, Rng
from nstance.config import storage_keys
from nstance.model.ids import ClusterId
from nstance.objects import settle
from nstance.objects.port import Key, ObjectStore
from nstance.pki import ca, fields, keys
from nstance.secretstore import errors as secrets
from nstance.secretstore import kinds, port, sealing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Places:
    """The keys of the cluster's objects. `prefix` is `cluster/` by default; `secrets` is below it and holds sealed secrets."""

    prefix: str
    secrets: str = storage_keys.SECRETS

    @property
    def sealed_ca(self) -> Key:
        return storage_keys.ca_sealed(prefix=self.prefix)

    @property
    def ca_certificate(self) -> Key:
        return storage_keys.ca_certificate(prefix=self.prefix)

    @property
    def nonce_key(self) -> Key:
        return storage_keys.secret(port.NONCE_KEY, prefix=self.prefix, secrets=self.secrets)

    @property
    def secret_prefix(self) -> str:
        return storage_keys.secret_prefix(prefix=self.prefix, secrets=self.secrets)


def open_vault(
    store: ObjectStore, *, keyring: sealing.Keyring | None, cluster: ClusterId, rng: Rng, insecure_dev: bool = False
) -> Vault:
    """Raises UnreadableError."""
    try:
        sealer = kinds.sealer(keyring, insecure_dev=insecure_dev)
    except secrets.BadKeyError as error:
        raise errors.UnreadableError(str(error)) from error
    return Vault(store=store, sealer=sealer, cluster=cluster, rng=rng)


async def open_authority(
    vault: Vault,
    places: Places,
    *,
    clock: Clock,
    create: bool,
    subject: fields.Subject | None = None,
    life: float = ca.CA_LIFE,
) -> keyset.Authority:
    """`create`: create what is missing, as servers do; tools only read. Raises AuthorityError, which is final, and storage
    errors, after which it may be called again."""
    store, cluster = vault.store, vault.cluster
    # All at once, because on slow storage each wait counts; errors are raised in this order.
    found = await asyncio.gather(
        settle.read(store, places.ca_certificate),
        vault.read(places.sealed_ca),
        vault.read(places.nonce_key),
        return_exceptions=True,
    )
    certificate = _result(found[0])
    if certificate is not None:
        _check_cluster(certificate.body, cluster, places)
    held, nonce_held = _result(found[1]), _result(found[2])
    if held is None and certificate is not None:
        # The certificate is created after the sealed CA, and proves it; but it may have been read after that one.
        held = await vault.read(places.sealed_ca)
    if held is None:
        if certificate is not None:
            raise errors.UnreadableError(
                f"{places.ca_certificate} exists but {places.sealed_ca} does not: the cluster's CA key is lost; restore "
                f"it from a backup (only for a cluster without any VM: remove {places.ca_certificate} to start again)"
            )
        if not create:
            raise errors.NotFoundError(f"there is no CA at {places.sealed_ca} yet; start a server of the cluster first")
        made = ca.new_ca(cluster, now=clock.wall(), rng=vault.rng, subject=subject, life=life)
        created, nonce_key = await asyncio.gather(
            vault.create(places.sealed_ca, keyset.dump_cas(cluster, [keyset.DatedCa(made, 0)])),
            _create_nonce_key(vault, places, nonce_held, create=create),
        )
        cas = keyset.load_cas(created.plain, cluster=cluster, name=places.sealed_ca)
    else:
        cas = keyset.load_cas(held.plain, cluster=cluster, name=places.sealed_ca)  # before anything is created
        nonce_key = await _create_nonce_key(vault, places, nonce_held, create=create)
    nonce_keys = keyset.load_nonce_keys(nonce_key.plain, cluster=cluster, name=places.nonce_key)
    opened = keyset.Authority(cluster=cluster, cas=tuple(cas), nonce_keys=tuple(nonce_keys))
    if create and certificate is None:
        await settle.create_or_adopt(store, places.ca_certificate, opened.bundle.encode())
    elif create and certificate is not None and certificate.body != opened.bundle.encode():
        await settle.put(store, places.ca_certificate, opened.bundle.encode())
    return opened


async def find_cluster(store: ObjectStore, places: Places) -> ClusterId:
    """The cluster of this storage, from its CA certificate. Raises NotFoundError, UnreadableError."""
    certificate = await settle.read(store, places.ca_certificate)
    if certificate is None:
        raise errors.NotFoundError(f"there is no {places.ca_certificate} that names the cluster; give the cluster's ID")
    return _owner(certificate.body, places)


def _result(found: T | BaseException) -> T:
    if isinstance(found, BaseException):
        raise found
    return found


async def _create_nonce_key(vault: Vault, places: Places, held: Held | None, *, create: bool) -> Held:
    """`held`: what was read."""
    if held is not None:
        return held
    if not create:
        raise errors.NotFoundError(f"there is no {places.nonce_key} yet; start a server of the cluster first")
    made = keyset.DatedKey(keys.generate(vault.rng), 0)
    return await vault.create(places.nonce_key, keyset.dump_nonce_keys(vault.cluster, [made]))


def _check_cluster(bundle: bytes, cluster: ClusterId, places: Places) -> None:
    """The sealed object would fail for another cluster too, but with a worse message. A damaged copy is ignored and written
    again from the sealed object."""
    try:
        owner = _owner(bundle, places)
    except errors.UnreadableError:
        return
    if owner != cluster:
        raise errors.WrongClusterError(
            f"the storage under {places.prefix!r} belongs to cluster {owner}, expected {cluster}; "
            "give each cluster its own bucket or prefix"
        )


def _owner(bundle: bytes, places: Places) -> ClusterId:
    try:
        return ca.cluster_of(ca.load_certificate(bundle.decode("ascii", "replace")))
    except fields.CertificateError as error:
        raise errors.UnreadableError(
            f"{places.ca_certificate}: {error}; a server of the cluster writes it again"
        ) from error
