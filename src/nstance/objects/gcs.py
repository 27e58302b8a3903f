"""Object storage in Google Cloud Storage, by its JSON API. The version of an object is its generation.

Nothing is repeated here: after "applied, then 500" a repeated write would meet its own object and report a lost race. Each
failure is classified by what it proves: a refused connection proves that nothing was applied, a 412 that another writer
was first, a timeout or a 5xx proves nothing. The traps: a 404 proves an absence only if Google itself says which object is
missing (a proxy's 404 or a missing bucket does not); a write over an absent object is a 412 as well; and one object takes
one write per second, so leaders space the writes of their lease (`write_gap_seconds`).
"""

import calendar
import contextlib
import functools
import json
import os
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Mapping

from nstance.clock import SystemClock
from nstance.clouds.errors import CredentialsError, NoAnswerError, NotSentError
from nstance.gcp.client import Answer, Call, GoogleClient, Reply
from nstance.gcp.endpoints import STORAGE, endpoint
from nstance.gcp.errors import GoogleError
from nstance.gcp.signed_urls import signed_url
from nstance.objects import errors, keys
from nstance.objects.port import MAX_READ, Head, Key, Stored, Version, check_size

TIMEOUT_SECONDS = 30.0  # for a whole request; callers may set a shorter deadline
PAGE_SIZE = 1000
WRITE_GAP_SECONDS = 1.1  # Google takes one write per second and object
DELETE_ATTEMPTS = 3
ABSENT = "0"  # the generation of an object that does not exist


class GcsStore:
    write_gap_seconds = WRITE_GAP_SECONDS

    def __init__(
        self,
        bucket: str,
        *,
        endpoint_url: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Credentials come from the file that GOOGLE_APPLICATION_CREDENTIALS names, or from the metadata server. An emulator
        (STORAGE_EMULATOR_HOST) needs none."""
        url = endpoint(STORAGE, configured=endpoint_url or "", environment=environment)
        address = urllib.parse.urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise errors.PermissionDeniedError(f"expected an endpoint like https://host:port, found {url!r}")
        self._name = f"GCS bucket {bucket} at {url if endpoint_url or 'googleapis' not in url else 'Google'}"
        self._bucket = urllib.parse.quote(bucket, safe="")
        self._timeout = timeout
        is_emulator = not endpoint_url and bool(environment.get("STORAGE_EMULATOR_HOST"))
        self._clock = SystemClock()
        self._client = GoogleClient(
            clock=self._clock, environment={**environment, STORAGE.variable: url}, is_anonymous=is_emulator
        )

    def __repr__(self) -> str:
        return self._name

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        keys.check(key)
        try:
            with self._reading(f"get {key}"):
                reply = await self._send("GET", self._object(key), {"alt": "media"}, limit=limit)
        except errors.UnavailableError as problem:
            if isinstance(problem.__cause__, GoogleError) and problem.__cause__.status == 404:
                await self.head(key)  # the error of a media reply is plain text: this one says what is missing
            raise
        check_size(key, reply.size, limit)
        return Stored(reply.body, self._version(key, reply.headers.get("x-goog-generation"), errors.UnavailableError))

    async def head(self, key: Key) -> Head:
        keys.check(key)
        with self._reading(f"head {key}"):
            found = await self._json("GET", self._object(key), {"fields": "generation,size,updated"})
        version = self._version(key, found.get("generation"), errors.UnavailableError)
        try:
            return Head(version, int(found["size"]), _time(str(found["updated"])))
        except (KeyError, ValueError) as problem:
            raise errors.UnavailableError(f"head {key} in {self._name}: the answer lacks {problem}") from problem

    async def create(self, key: Key, body: bytes) -> Version:
        keys.check(key)
        return await self._write(f"create {key}", key, body, ABSENT)

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        keys.check(key)
        try:
            if not seen.isdecimal() or seen == ABSENT:
                raise errors.ConflictError(f"replace {key} in {self._name}: {seen!r} is no generation")
            return await self._write(f"replace {key}", key, body, seen)
        except errors.ConflictError as conflict:
            if await self._is_absent(key):
                raise errors.NotFoundError(f"replace {key} in {self._name}: it does not exist") from conflict
            raise

    async def delete(self, key: Key) -> None:
        """Of the generation that is there now: a copy of this call that arrives late deletes nothing newer."""
        keys.check(key)
        for _ in range(DELETE_ATTEMPTS):
            try:
                seen = (await self.head(key)).version
                with self._writing(f"delete {key}"):
                    await self._send("DELETE", self._object(key), {"ifGenerationMatch": seen})
                return
            except errors.NotFoundError:
                return
            except errors.ConflictError:
                continue
        raise errors.ContendedError(f"delete {key} in {self._name}: others wrote it {DELETE_ATTEMPTS} times meanwhile")

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        query = {"prefix": prefix, "maxResults": str(PAGE_SIZE), "fields": "nextPageToken,items(name)"}
        if after:
            query["startOffset"] = after  # inclusive
        seen: set[str] = set()
        while True:
            with self._reading(f"list {prefix}*"), _only_the_bucket_is_named():
                page = await self._json("GET", f"/storage/v1/b/{self._bucket}/o", query)
                names = [str(item["name"]) for item in page.get("items") or ()]
            for name in names:
                if name > after:
                    yield Key(name)
            token = str(page.get("nextPageToken") or "")
            if not token:
                return
            if token in seen:
                raise errors.UnavailableError(f"list {prefix}* in {self._name} repeats a page: it is not complete")
            seen.add(token)
            query["pageToken"] = token

    async def sign_url(self, key: Key, *, seconds: float) -> str:
        keys.check(key)
        with self._reading(f"sign {key}"):
            return await signed_url(
                self._client.url(STORAGE),
                f"/{self._bucket}/{urllib.parse.quote(key, safe='/~')}",
                account=await self._client.account(),
                sign=self._client.sign,
                now=self._clock.wall(),
                seconds=seconds,
            )

    async def close(self) -> None:
        await self._client.close()

    async def _is_absent(self, key: Key) -> bool:
        """False also if that cannot be found out."""
        try:
            await self.head(key)
        except errors.NotFoundError:
            return True
        except errors.StorageError:
            pass
        return False

    async def _write(self, call: str, key: Key, body: bytes, generation: str) -> Version:
        query = {"uploadType": "media", "name": key, "ifGenerationMatch": generation, "fields": "generation"}
        with self._writing(call):
            with _only_the_bucket_is_named():
                reply = await self._send("POST", f"/upload/storage/v1/b/{self._bucket}/o", query, body=body)
            return self._version(key, _parse(reply).get("generation"), errors.UnknownOutcomeError)

    async def _json(self, method: str, path: str, query: Mapping[str, str]) -> Answer:
        return _parse(await self._send(method, path, query))

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], *, body: bytes | None = None, limit: int = 32 << 20
    ) -> Reply:
        call = Call(
            service=STORAGE,
            method=method,
            path=path,
            query=query,
            body=body,
            content_type="application/octet-stream",
            accept_encoding="identity",
            seconds=self._timeout,
            limit=limit,
        )
        return await self._client.send(call)

    def _object(self, key: Key) -> str:
        return f"/storage/v1/b/{self._bucket}/o/{urllib.parse.quote(key, safe='')}"

    def _version(self, key: Key, generation: object, otherwise: type[errors.StorageError]) -> Version:
        if not isinstance(generation, str) or not generation.isdecimal():
            raise otherwise(f"{key}: {self._name} answered without a generation")
        return Version(generation)

    @contextlib.contextmanager
    def _translated(self, call: str, otherwise: type[errors.StorageError]) -> Iterator[None]:
        """`otherwise` is the error if it is unknown whether the store applied the call."""
        where = f"{call} in {self._name}"
        try:
            yield
        except CredentialsError as problem:
            raise errors.UnavailableError(f"{where}: {problem}") from problem
        except NotSentError as problem:
            raise errors.UnavailableError(f"{where}: {problem} (no connection)") from problem
        except (NoAnswerError, ValueError, TypeError, KeyError) as problem:
            raise otherwise(f"{where}: {problem}") from problem
        except GoogleError as problem:
            raise _classified(problem, where, otherwise) from problem

    _reading = functools.partialmethod(_translated, otherwise=errors.UnavailableError)
    _writing = functools.partialmethod(_translated, otherwise=errors.UnknownOutcomeError)


@contextlib.contextmanager
def _only_the_bucket_is_named() -> Iterator[None]:
    """Of a call that names no object: what it does not find is the bucket, whatever the message says."""
    try:
        yield
    except GoogleError as problem:
        if problem.status == 404 and problem.reason == "notFound":
            raise GoogleError(404, problem.reason, f"the bucket does not exist ({problem.message})") from None
        raise


def _classified(problem: GoogleError, where: str, otherwise: type[errors.StorageError]) -> errors.StorageError:
    message = f"{where}: {problem}"
    match problem.status:
        case 412 | 304:
            return errors.ConflictError(message)
        case _ if problem.is_throttled:
            return errors.ContendedError(message)
        case 404 if problem.reason == "notFound" and "bucket does not exist" in problem.message.lower():
            return errors.PermissionDeniedError(f"{message}; create the bucket, or correct its name")
        case 404 if problem.reason == "notFound":
            return errors.NotFoundError(message)
        case 401:
            return errors.PermissionDeniedError(f"{message}; Google does not accept this program's credentials")
        case 404 | 409:
            return errors.UnavailableError(message)
        case _ if problem.is_server_fault:
            return otherwise(message)
        case _:
            return errors.PermissionDeniedError(message)


def _parse(reply: Reply) -> Answer:
    """Raises ValueError."""
    found = json.loads(reply.body)
    if not isinstance(found, dict):
        raise ValueError("expected an object as the answer")
    return found


def _time(text: str) -> float:
    return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
