"""The files of an instance: rendered from its template, with certificates for the keys that it made itself.

The set's hash covers templates, addresses and the CA, so an agent that already has the set is sent nothing. Certificates
are logged before they are handed out; if that fails, none is. A set is installed as a whole, so one file that cannot be
made holds back all of them; the error names it.
"""

import asyncio
import contextlib
import hashlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
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

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
MAX_CACHED_SOURCES = 256
FETCH_TIMEOUT_SECONDS = 30.0

_NOT_FOUND = (secrets.NotFoundError, storage.NotFoundError, rendering.NotFetchedError)
_PERMANENT = (rendering.RenderError, fields.CertificateError, storage.ObjectTooLargeError)
_TRANSIENT = (secrets.SecretError, storage.StorageError, TimeoutError)


class FileSetError(Exception):
    """A file of the set cannot be made. The message names the file."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    basis: str  # hash of what it was made from
    certificate: ca.Issued
    renew_at: float


@dataclass(frozen=True, slots=True)
class FileSet:
    hash: str
    files: Mapping[str, bytes]
    renew_at: float | None  # by the wall clock: when the first certificate has used two thirds of its life
    missing: tuple[str, ...] = ()  # paths that templates print although they are not set

    def digests(self) -> dict[str, str]:
        """By file name, as agents report them."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}


def key_names(resolved: Resolved) -> list[str]:
    """The keys that an instance's certificates need, without suffix."""
    return sorted({_key_name(file) for file in resolved.files.values() if isinstance(file, CertificateFile)})


def has_sources(resolved: Resolved) -> bool:
    """Whether a file's content is kept elsewhere, where it may change without a change of the configuration."""
    return any(isinstance(file, SecretFile | StorageFile) for file in resolved.files.values())


def _key_name(file: CertificateFile) -> str:
    return file.key.name.removesuffix(".pub")


def set_hash(context: RenderContext, resolved: Resolved, instance: Instance) -> str:
    return hashes.digest(
        [
            resolved.group.runtime_hash,
            dict(instance.vars),
            instance.ip4,
            instance.ip6,
            instance.hostname,
            context.ca_bundle if key_names(resolved) else "",
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSets:
    store: ObjectStore
    secret_store: SecretStore
    authority: Callable[[], Authority]
    shard: ShardId
    clock: Clock
    rng: Rng
    cache_ttl: float
    count: Callable[[], None]  # an issued certificate
    on_made: Callable[[bool], None] = lambda succeeded: None  # an attempt to make a file set has ended
    _sources: dict[str, tuple[float, bytes]] = field(default_factory=dict, init=False)  # with the end of their use
    _fetching: weakref.WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=weakref.WeakValueDictionary, init=False
    )

    async def make(
        self,
        context: RenderContext,
        resolved: Resolved,
        instance: Instance,
        public_keys: Mapping[str, bytes],
        issued: dict[str, IssuedCertificate],
        *,
        spend: Callable[[], None],
    ) -> FileSet:
        """Raises FileSetError. `issued`: by file name, updated here. `spend` is called before something is written to
        storage, and may raise."""
        values = rendering.data(context, resolved, instance)
        with self._counting():
            files: dict[str, bytes] = {}
            certificates: dict[str, IssuedCertificate] = {}
            for name, spec in resolved.files.items():
                try:
                    if isinstance(spec, CertificateFile):
                        request = rendering.workload(resolved.certificates[spec.template], values)
                        certificates[name] = self._certificate(request, public_keys[_key_name(spec)], issued.get(name))
                        files[name] = certificates[name].certificate.pem.encode()
                    else:
                        files[name] = await self._content(spec, values, context)
                except (*_NOT_FOUND, *_PERMANENT, *_TRANSIENT) as error:
                    retryable = isinstance(error, _NOT_FOUND) or not isinstance(error, _PERMANENT)
                    raise FileSetError(f"{name}: {error}", retryable=retryable) from error
                if len(files[name]) > MAX_FILE_BYTES:
                    raise FileSetError(
                        f"{name}: expected at most {MAX_FILE_BYTES} bytes, found {len(files[name])}", retryable=False
                    )
            new = {name: made for name, made in certificates.items() if made is not issued.get(name)}
            if new:
                spend()
                await self._log([certlog.Logged(name, made.certificate) for name, made in new.items()], instance)
                issued.update(new)  # not before: a remembered certificate is handed out without a log entry
            renew_at = min((made.renew_at for made in certificates.values()), default=None)
            return FileSet(set_hash(context, resolved, instance), files, renew_at, tuple(values.missing))

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except FileSetError:
            self.on_made(False)
            raise
        self.on_made(True)

    async def has_new_content(
        self, context: RenderContext, resolved: Resolved, instance: Instance, digests: dict[str, str]
    ) -> bool:
        """Whether a secret or an object has changed since the instance got it. `digests`: of the files that it has; those
        that it did not report are added. What cannot be read now has not changed: the instance keeps what it has."""
        values = rendering.data(context, resolved, instance)
        changed = False
        for name, spec in resolved.files.items():
            if not isinstance(spec, SecretFile | StorageFile):
                continue
            try:
                digest = hashlib.sha256(await self._content(spec, values, context)).hexdigest()
            except (*_NOT_FOUND, *_PERMANENT, *_TRANSIENT) as error:
                log.warning("failed to look for a new version of a file: %s", error, extra={"file": name})
                continue
            changed |= digests.setdefault(name, digest) != digest
        return changed

    async def _content(
        self,
        spec: EnvFile | JsonFile | StringFile | SecretFile | StorageFile,
        values: rendering.Values,
        context: RenderContext,
    ) -> bytes:
        match spec:
            case EnvFile():
                return rendering.env_file(spec, values)
            case JsonFile():
                return rendering.json_file(spec, values)
            case StringFile():
                return rendering.string_file(spec, values)
            case SecretFile():
                return await self._cached(f"secret {spec.source}", lambda: self.secret_store.get(spec.source))
            case StorageFile():
                key = rendering.object_key(spec.source, values, context.settings.cluster)
                return await self._cached(f"object {key}", lambda: self._read_object(key))

    def _certificate(
        self, request: ca.WorkloadSpec, public_key: bytes, known: IssuedCertificate | None
    ) -> IssuedCertificate:
        now = self.clock.wall()
        signer = self.authority().signer(now)
        basis = hashlib.sha256(repr((request, signer.pem)).encode() + public_key).hexdigest()
        if known is not None and known.basis == basis and now < known.renew_at:
            return known
        made = signer.issue_workload(request, public_key, serial=ca.new_serial(self.rng), issued=now)
        return IssuedCertificate(basis, made, now + (made.expires - now) * 2 / 3)

    async def _log(self, batch: list[certlog.Logged], instance: Instance) -> None:
        try:
            await certlog.write(
                self.store, batch, shard=self.shard, instance=instance, now=self.clock.wall(), rng=self.rng
            )
        except (storage.StorageError, TimeoutError) as error:
            raise FileSetError(
                f"failed to write the certificate log, so no certificate is handed out: {error}", retryable=True
            ) from error
        for _ in batch:
            self.count()

    async def _read_object(self, key: str) -> bytes:
        return (await self.store.get(Key(key), limit=MAX_FILE_BYTES)).body

    async def _cached(self, source: str, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        async with self._fetching.setdefault(source, asyncio.Lock()):  # all agents of a group ask at once
            now = self.clock.monotonic()
            known = self._sources.get(source)
            if known is not None and now < known[0]:
                return known[1]
            async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
                value = await fetch()
            self._sources.pop(source, None)
            if len(self._sources) >= MAX_CACHED_SOURCES:
                self._sources.pop(next(iter(self._sources)))
            self._sources[source] = (now + self.cache_ttl, value)
            return value
