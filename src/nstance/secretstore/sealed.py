"""Encrypted secrets in object storage, shared by all servers and admin tools of the cluster."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nstance.clock import Rng
from nstance.model.ids import ClusterId
from nstance.objects import errors as storage
from nstance.objects import settle
from nstance.objects.port import Key, ObjectStore
from nstance.secretstore import errors, port, sealing

Refresh = Callable[[], Awaitable[sealing.Sealer]]


class SealedStore:
    def __init__(
        self,
        store: ObjectStore,
        *,
        prefix: str,
        sealer: sealing.Sealer,
        cluster: ClusterId,
        rng: Rng,
        refresh: Refresh | None = None,
    ) -> None:
        """`prefix` is that of the keys, as in `cluster/secret/`. `refresh` reads the encryption keys again: it is called
        for a secret that the known ones cannot open, because the key may have been rotated."""
        self._store = store
        self._prefix = prefix
        self._sealer = sealer
        self._cluster = cluster
        self._rng = rng
        self._refresh = refresh

    async def get(self, name: str) -> bytes:
        key = self._key(name)
        with _translate_errors(name):
            found = await settle.read(self._store, key)
        if found is None:
            raise errors.NotFoundError(f"no secret {name!r}")
        try:
            return self._sealer.open(found.body, cluster=self._cluster, name=key)
        except errors.DecryptionError:
            if self._refresh is None:
                raise
            self._sealer = await self._refresh()
            return self._sealer.open(found.body, cluster=self._cluster, name=key)

    async def create(self, name: str, value: bytes) -> None:
        key = self._key(name)
        blob = self._seal(key, value)
        with _translate_errors(name):
            found = await settle.create_or_adopt(self._store, key, blob)
        if found.body != blob:
            raise errors.AlreadyExistsError(f"the secret {name!r} already exists")

    async def put(self, name: str, value: bytes) -> None:
        key = self._key(name)
        with _translate_errors(name):
            await settle.put(self._store, key, self._seal(key, value))

    async def list(self) -> list[port.SecretName]:
        with _translate_errors("*"):
            keys = await settle.list_keys(self._store, self._prefix)
        names = (key.removeprefix(self._prefix) for key in keys)
        return sorted(port.SecretName(name) for name in names if port.is_name(name))

    async def delete(self, name: str) -> None:
        key = self._key(name)
        with _translate_errors(name):
            await settle.delete(self._store, key)

    def _key(self, name: str) -> Key:
        return Key(self._prefix + port.check_name(name))

    def _seal(self, key: Key, value: bytes) -> bytes:
        port.check_value(value)
        return self._sealer.seal(value, cluster=self._cluster, name=key, rng=self._rng)


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Storage errors as errors of this port."""
    try:
        yield
    except storage.PermissionDeniedError as error:
        raise errors.PermanentError(f"secret {name!r}: {error}") from error
    except storage.ObjectTooLargeError as error:
        raise errors.DecryptionError(f"secret {name!r}: {error}") from error
    except storage.StorageError as error:
        raise errors.UnavailableError(f"secret {name!r}: {error}") from error
