"""What an instance should hold: its template's files, rendered, with certificates for the keys it made itself.

The set's hash covers the templates, the instance's addresses and the CA, so an agent that already has that set is sent
nothing. Certificates are logged before they are handed out; if that fails, none is. The trap: a set is put in place as a
whole, so one file that cannot be made holds back all of them, with an event that names it.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from nstance.authority import certlog
from nstance.authority.keyset import Authority
from nstance.clock import Clock, Rng
from nstance.config import hashes
from nstance.config.model.workload import CertificateFile, EnvFile, JsonFile, SecretFile, StorageFile, StringFile
from nstance.config.resolve import Resolved
from nstance.model.ids import ShardId
from nstance.model.instance import Instance
from nstance.objects import errors as storage
from nstance.objects.port import Key, ObjectStore
from nstance.pki import ca, fields
from nstance.secretstore import errors as secrets
from nstance.secretstore.port import SecretStore
from nstance.server.workload import rendering
from nstance.server.workload.rendering import RenderContext

MAX_FILE = 1 << 20
MAX_CACHED = 256
FETCH_TIMEOUT = 30.0


class FileSetError(Exception):
    """A file of the set cannot be made. The message names it; `again` says whether trying later may help."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


@dataclass(slots=True)
class Issued:
    """Certificates that an instance was given, by file name."""

    by_file: dict[str, "Given"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    basis: str  # what it was made from
    certificate: ca.Issued
    renew_at: float


@dataclass(frozen=True, slots=True)
class FileSet:
    hash: str
    files: Mapping[str, bytes]
    renew_at: float | None  # wall clock: when its first certificate has used two thirds of its life
    missing: tuple[str, ...] = ()  # what its templates print although nobody has set it


def key_names(resolved: Resolved) -> list[str]:
    """The keys that an instance's certificates need, without suffix."""
    names = (f.key.name.removesuffix(".pub") for f in resolved.files.values() if isinstance(f, CertificateFile))
    return sorted(set(names))


def set_hash(around: RenderContext, resolved: Resolved, instance: Instance) -> str:
    told = [
        resolved.group.runtime_hash,
        dict(instance.vars),
        instance.ip4,
        instance.ip6,
        instance.hostname,
        around.ca_bundle if any(isinstance(f, CertificateFile) for f in resolved.files.values()) else "",
    ]
    return hashes.digest(told)


class FileSets:
    def __init__(
        self,
        *,
        store: ObjectStore,
        secret_store: SecretStore,
        authority: Callable[[], Authority],
        shard: ShardId,
        clock: Clock,
        rng: Rng,
        cache_ttl: float,
        count: Callable[[], None],
    ) -> None:
        self._store = store
        self._secrets = secret_store
        self._authority = authority
        self._shard = shard
        self._clock = clock
        self._rng = rng
        self._ttl = cache_ttl
        self._count = count
        self._fetched: dict[str, tuple[float, bytes]] = {}

    async def make(
        self,
        around: RenderContext,
        resolved: Resolved,
        instance: Instance,
        public_keys: Mapping[str, bytes],
        issued: Issued,
        *,
        spend: Callable[[], None],
    ) -> FileSet:
        """Raises CannotMake. `spend` is called before something is written to storage, and may refuse."""
        values = rendering.data(around, resolved, instance)
        made: dict[str, bytes] = {}
        fresh: dict[str, Given] = {}
        renew_at: float | None = None
        now = self._clock.wall()
        for name, spec in resolved.files.items():
            try:
                match spec:
                    case CertificateFile():
                        template = resolved.certificates[spec.template]
                        wanted = rendering.workload(template, values)
                        public_key = public_keys[spec.key.name.removesuffix(".pub")]
                        given = self._certificate(wanted, public_key, issued.by_file.get(name), now)
                        if given is not issued.by_file.get(name):
                            fresh[name] = given
                        made[name] = given.certificate.pem.encode()
                        renew_at = given.renew_at if renew_at is None else min(renew_at, given.renew_at)
                    case EnvFile():
                        made[name] = rendering.env_file(spec, values)
                    case JsonFile():
                        made[name] = rendering.json_file(spec, values)
                    case StringFile():
                        made[name] = rendering.string_file(spec, values)
                    case SecretFile():
                        made[name] = await self._secret(spec.source)
                    case StorageFile():
                        key = rendering.object_key(spec.source, values, around.settings.cluster)
                        made[name] = await self._object(key)
            except (
                rendering.RenderError,
                fields.CertificateError,
                secrets.NotFoundError,
                storage.NotFoundError,
                storage.ObjectTooLargeError,
            ) as problem:
                raise FileSetError(
                    f"{name}: {problem}",
                    again=isinstance(
                        problem, secrets.NotFoundError | storage.NotFoundError | rendering.NotFetchedError
                    ),
                ) from problem
            except (secrets.SecretError, storage.StorageError, TimeoutError) as problem:
                raise FileSetError(f"{name}: {problem}", again=True) from problem
            if len(made[name]) > MAX_FILE:
                raise FileSetError(f"{name}: has {len(made[name])} bytes, at most {MAX_FILE} are possible", again=False)
        if fresh:
            spend()
            await self._log([certlog.Logged(name, given.certificate) for name, given in fresh.items()], instance)
            issued.by_file.update(fresh)  # not before: what is remembered here is handed out without another entry
        return FileSet(set_hash(around, resolved, instance), made, renew_at, tuple(values.missing))

    def _certificate(self, wanted: ca.WorkloadSpec, public_key: bytes, known: Given | None, now: float) -> Given:
        signer = self._authority().signer(now)
        basis = hashlib.sha256(repr((wanted, signer.pem)).encode() + public_key).hexdigest()
        if known is not None and known.basis == basis and now < known.renew_at:
            return known
        made = signer.issue_workload(wanted, public_key, serial=ca.new_serial(self._rng), issued=now)
        return Given(basis, made, now + (made.expires - now) * 2 / 3)

    async def _log(self, batch: list[certlog.Logged], instance: Instance) -> None:
        try:
            await certlog.write(
                self._store,
                batch,
                shard=self._shard,
                tenant=instance.tenant,
                instance=instance.id,
                now=self._clock.wall(),
                rng=self._rng,
            )
        except (storage.StorageError, TimeoutError) as problem:
            raise FileSetError(
                f"the certificate log cannot be written, so none is handed out: {problem}", again=True
            ) from problem
        for _ in batch:
            self._count()

    async def _secret(self, name: str) -> bytes:
        return await self._cached(f"secret {name}", lambda: self._secrets.get(name))

    async def _object(self, key: str) -> bytes:
        async def get() -> bytes:
            return (await self._store.get(Key(key), limit=MAX_FILE)).body

        return await self._cached(f"object {key}", get)

    async def _cached(self, what: str, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        now = self._clock.monotonic()
        known = self._fetched.get(what)
        if known is not None and now < known[0]:
            return known[1]
        async with asyncio.timeout(FETCH_TIMEOUT):
            value = await fetch()
        if len(self._fetched) >= MAX_CACHED:
            self._fetched.pop(next(iter(self._fetched)))
        self._fetched[what] = (now + self._ttl, value)
        return value
