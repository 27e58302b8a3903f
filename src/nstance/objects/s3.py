"""Object storage in S3, or in any store that speaks it with conditional writes.

The client library's retries are off: after "applied, then 500" a retry would meet its own write and report a lost race.
Instead each failure is classified by what it proves: a refused connection proves that nothing was applied, a 412 that
another writer was first, a timeout or a 5xx proves nothing. The traps: a 404 proves an absence only if S3 itself says
NoSuchKey (a proxy's 404 or a missing bucket does not); a 409 means that two writes met and neither is known to have won,
so it is retried; ETags are content hashes on S3, so equal bytes are equal versions. Run it on uvloop: on the standard
loop the library may abort the process at exit.
"""

import contextlib
import datetime
import functools
import os
import re
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Mapping

import obstore
from obstore import exceptions, store

from nstance.objects import errors, keys
from nstance.objects.port import MAX_READ, Head, Key, Stored, Version, check_size

TIMEOUT_SECONDS = 30.0  # for a whole request; callers may set a shorter deadline
CONNECT_TIMEOUT_SECONDS = 3.0

_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")


class S3Store:
    def __init__(
        self,
        bucket: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Credentials come from the usual AWS variables, the container or the instance role."""
        endpoint = endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None
        self._name = f"S3 bucket {bucket} at {endpoint or 'Amazon'}"
        self._bucket = bucket
        try:
            self._store = _open(bucket, region, endpoint, timeout, environment)
        except (exceptions.BaseError, ValueError) as problem:
            raise errors.PermissionDeniedError(f"failed to open {self._name}: {_first_line(problem)}") from problem

    def __repr__(self) -> str:
        return self._name

    async def get(self, key: Key, *, limit: int = MAX_READ) -> Stored:
        keys.check(key)
        with self._reading(f"get {key}"):
            answer = await obstore.get_async(self._store, key)
            check_size(key, answer.meta["size"], limit)  # before the body is read
            body = bytes(await answer.bytes_async())
            return Stored(body, self._seen(key, answer.meta.get("e_tag")))

    async def head(self, key: Key) -> Head:
        keys.check(key)
        try:
            with self._reading(f"head {key}"):
                meta = await obstore.head_async(self._store, key)
        except errors.UnavailableError as problem:
            if _status(problem.__cause__) != 404:
                raise
            # An answer to HEAD has no body, so it does not say what is missing: the object, the bucket or the endpoint.
            with self._reading(f"head {key}"):
                meta = (await obstore.get_async(self._store, key)).meta
        return Head(self._seen(key, meta.get("e_tag")), meta["size"], meta["last_modified"].timestamp())

    async def create(self, key: Key, body: bytes) -> Version:
        keys.check(key)
        with self._writing(f"create {key}"):
            answer = await obstore.put_async(self._store, key, body, mode="create", use_multipart=False)
            return self._written(key, answer["e_tag"])

    async def replace(self, key: Key, body: bytes, *, seen: Version) -> Version:
        keys.check(key)
        with self._writing(f"replace {key}"):
            answer = await obstore.put_async(self._store, key, body, mode={"e_tag": seen}, use_multipart=False)
            return self._written(key, answer["e_tag"])

    async def delete(self, key: Key) -> None:
        keys.check(key)
        with contextlib.suppress(errors.NotFoundError), self._writing(f"delete {key}"):
            await obstore.delete_async(self._store, key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Key]:
        parent = prefix.rpartition("/")[0]  # the library works with whole path segments, here and in its offset
        if parent and not keys.is_valid(parent):
            return
        start = after.rstrip("/") if keys.is_valid(after.rstrip("/")) else None
        with self._reading(f"list {prefix}*"):
            pages = obstore.list(self._store, prefix=parent or None, offset=start, chunk_size=1000)
            async for page in pages:
                for meta in page:
                    key = meta["path"]
                    if key.startswith(prefix):
                        if key > after:
                            yield Key(key)
                    elif key > prefix:
                        return

    async def sign_url(self, key: Key, *, seconds: float) -> str:
        keys.check(key)
        with self._reading(f"sign {key}"):
            return await obstore.sign_async(self._store, "GET", key, datetime.timedelta(seconds=seconds))

    async def close(self) -> None:
        """Nothing to close."""

    def _seen(self, key: Key, etag: str | None) -> Version:
        if not etag:
            raise errors.PermissionDeniedError(f"{key}: {self._name} returns no ETags; use a store that does")
        return Version(etag)

    def _written(self, key: Key, etag: str | None) -> Version:
        if not etag:
            raise errors.UnknownOutcomeError(
                f"{key}: {self._name} answered without an ETag, so the written version is unknown"
            )
        return Version(etag)

    @contextlib.contextmanager
    def _translating(self, call: str, *, otherwise: type[errors.StorageError]) -> Iterator[None]:
        try:
            yield
        except (exceptions.BaseError, OSError, ValueError) as problem:
            raise self._translate(problem, call, otherwise=otherwise) from problem

    _reading = functools.partialmethod(_translating, otherwise=errors.UnavailableError)
    _writing = functools.partialmethod(_translating, otherwise=errors.UnknownOutcomeError)

    def _translate(self, problem: Exception, call: str, *, otherwise: type[errors.StorageError]) -> errors.StorageError:
        """`otherwise` is the error if it is unknown whether the store applied the call."""
        text = str(problem)
        status = _status(problem)
        code = _search(_CODE, text)
        message = f"{call} in {self._name}: {status or _first_line(problem)}"
        message += "".join(f" {part}" for part in (code, _search(_MESSAGE, text)) if part)
        if "169.254." in text:
            message += "; no AWS credentials in the environment or from the instance"
        match status:
            case None if "kind: Connect," in text:
                return errors.UnavailableError(f"{message} (no connection)")
            case None if "incorrectly configured region" in text:
                return errors.PermissionDeniedError(f"{message}; set AWS_REGION to the bucket's region")
            case None | 408:
                return otherwise(message)
            case 412:
                return errors.ConflictError(message)
            case 404 if code == "NoSuchKey":
                return errors.NotFoundError(message)
            case 404 if code == "NoSuchBucket":
                return errors.PermissionDeniedError(f"{message}; create the bucket, or correct its name")
            case 400 if code == "RequestTimeout":
                return otherwise(message)
            case 409:
                return errors.ContendedError(message)
            case 404 | 429:
                return errors.UnavailableError(message)
            case 501:
                return errors.PermissionDeniedError(f"{message}; the store lacks a required feature")
            case _ if status >= 500:
                return otherwise(message)
            case _:
                return errors.PermissionDeniedError(message)


def _open(
    bucket: str, region: str | None, endpoint: str | None, timeout: float, environment: Mapping[str, str]
) -> store.S3Store:
    path_style = environment.get("AWS_S3_USE_PATH_STYLE", "true" if endpoint else "false").lower() in (
        "1",
        "true",
        "yes",
    )
    config: store.S3Config = {
        "region": region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1",
        "virtual_hosted_style_request": not path_style,
        "disable_bulk_delete": True,
        "conditional_put": "etag",
    }
    if endpoint:
        address = urllib.parse.urlsplit(endpoint)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"expected an endpoint like https://host:port, found {endpoint!r}")
        if not path_style:
            endpoint = address._replace(netloc=f"{bucket}.{address.netloc}").geturl()
        config["endpoint"] = endpoint
        if "AWS_ENDPOINT_URL_S3" in environment:
            config["aws_endpoint_url_s3"] = endpoint  # otherwise the variable takes precedence
    return store.S3Store(
        bucket,
        config=config,
        client_options={
            "allow_http": (endpoint or "").startswith("http://"),
            "connect_timeout": datetime.timedelta(seconds=CONNECT_TIMEOUT_SECONDS),
            "timeout": datetime.timedelta(seconds=timeout),
        },
        retry_config={"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=timeout)},
    )


def _status(problem: BaseException | None) -> int | None:
    found = _search(_STATUS, str(problem))
    return int(found) if found else None


def _search(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _first_line(problem: Exception) -> str:
    return str(problem).partition("\n")[0][:300]
