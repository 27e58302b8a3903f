"""Sealed objects of the cluster: created once by the first writer, replaced only over the version that was read."""

from dataclasses import dataclass, field

from nstance.authority import errors
from nstance.clock import Rng
from nstance.model.ids import ClusterId
from nstance.objects import errors as storage
from nstance.objects import settle
from nstance.objects.port import Key, ObjectStore, Stored
from nstance.secretstore import errors as secrets
from nstance.secretstore import sealing


@dataclass(frozen=True, slots=True)
class Held:
    plain: bytes = field(repr=False)
    stored: Stored = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    store: ObjectStore
    sealer: sealing.Sealer
    cluster: ClusterId
    rng: Rng

    async def read(self, key: Key) -> Held | None:
        """None only if the store says that there is none. Raises UnreadableError."""
        found = await settle.read(self.store, key)
        return None if found is None else Held(self._open(key, found), found)

    async def create(self, key: Key, plain: bytes) -> Held:
        """Returns what is stored in the end: this content, or that of the first writer."""
        found = await settle.create_or_adopt(self.store, key, self._seal(key, plain))
        return Held(self._open(key, found), found)

    async def replace(self, key: Key, plain: bytes, *, seen: Held) -> None:
        """Raises ConflictError if it has changed since."""
        try:
            await settle.replace(self.store, key, self._seal(key, plain), seen=seen.stored)
        except storage.ConflictError as error:
            raise errors.ConflictError(f"{key} was changed by another writer; look, then try again") from error

    def _seal(self, key: Key, plain: bytes) -> bytes:
        return self.sealer.seal(plain, cluster=self.cluster, name=key, rng=self.rng)

    def _open(self, key: Key, found: Stored) -> bytes:
        try:
            return self.sealer.open(found.body, cluster=self.cluster, name=key)
        except secrets.DecryptionError as error:
            raise errors.UnreadableError(str(error)) from error
