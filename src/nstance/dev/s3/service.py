"""One request after another: who is it, which bucket, which operation.

Works on the raw request line, because the signature covers that and because keys may contain anything a URL library would
tidy up. What the server does not have is refused with NotImplemented: a client must never believe that a condition or an
option was honoured when it was not.
"""

import itertools
import logging
import urllib.parse
from collections.abc import Mapping

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.s3 import documents, payload, signature
from nstance.dev.s3.bucket import Bucket, xml
from nstance.dev.s3.errors import S3Error, not_implemented
from nstance.objects import errors as storage
from nstance.objects.port import Key

log = logging.getLogger(__name__)

LARGEST_BODY = 512 * 1024 * 1024  # bodies are held in memory

_HARMLESS = frozenset({"x-id"})  # SDKs put the name of the operation into the query
_LISTING = frozenset(
    {"list-type", "prefix", "delimiter", "max-keys", "start-after", "continuation-token", "encoding-type", "marker"}
    | {"fetch-owner"}
)


class Service:
    def __init__(self, buckets: Mapping[str, Bucket], *, credentials: Mapping[str, str], clock: clocks.Clock) -> None:
        self._buckets = buckets
        self._credentials = credentials
        self._clock = clock
        self._numbers = itertools.count(1)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        request_id = f"{next(self._numbers):016X}"
        try:
            response = await self._answer(request)
        except S3Error as problem:
            response = self._refusal(request, problem, request_id)
        except storage.StorageError as problem:
            response = self._refusal(request, _translated(problem), request_id)
        except OSError as problem:
            refused = S3Error(500, "InternalError", problem.strerror or str(problem))
            response = self._refusal(request, refused, request_id)
        response.headers["x-amz-request-id"] = request_id
        response.headers["Server"] = "nstance-dev-s3"
        log.debug("%s %s %d", request.method, request.raw_path.partition("?")[0], response.status)
        return response

    def _refusal(self, request: web.BaseRequest, problem: S3Error, request_id: str) -> web.Response:
        path = signature.split_target(request.raw_path)[0]
        if problem.status not in (404, 412):  # those two are everyday answers
            log.warning("%s %s refused: %s", request.method, path, problem)
        if request.method == "HEAD":
            return web.Response(status=problem.status)
        body = documents.error(
            problem.code, _printable(problem.message), resource=_printable(path), request_id=request_id
        )
        return web.Response(status=problem.status, body=body, content_type="application/xml")

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        target = request.raw_path
        signed = signature.verify(
            request.method, target, request.headers, credentials=self._credentials, clock=self._clock
        )
        path, pairs = signature.split_target(target)
        query = {name: value for name, value in pairs if name not in _HARMLESS and not name.startswith("X-Amz-")}
        name, key = self._place(path, request.headers.get("host", ""))
        if not name:
            return self._list_buckets(request.method)
        body = payload.unwrap(await _body(request), request.headers, signed)
        if name not in self._buckets:
            raise S3Error(
                404, "NoSuchBucket", f"there is no bucket {name!r}; start the server with --bucket {name}=DIR"
            )
        bucket = self._buckets[name]
        if key:
            return await self._object(request.method, bucket, Key(key), query, request.headers, body)
        return await self._whole_bucket(request.method, bucket, query, body)

    def _place(self, path: str, host: str) -> tuple[str, str]:
        """Bucket and key, from the path or, in the virtual-hosted style, from the first part of the host's name."""
        first, _, rest = host.partition(".")
        if first in self._buckets and not rest.replace(".", "").partition(":")[0].isdigit() and rest:
            return first, path.removeprefix("/")
        name, _, key = path.removeprefix("/").partition("/")
        return name, key

    def _list_buckets(self, method: str) -> web.Response:
        if method not in ("GET", "HEAD"):
            raise S3Error(405, "MethodNotAllowed", "only GET is allowed on /")
        nodes: list[documents.Node] = []
        for name, bucket in sorted(self._buckets.items()):
            made = documents.timestamp(bucket.folder.stat().st_mtime)
            nodes.append(("Bucket", [("Name", name), ("CreationDate", made)]))
        owner: documents.Node = ("Owner", [("ID", "dev"), ("DisplayName", "dev")])
        return xml("ListAllMyBucketsResult", [owner, ("Buckets", nodes)])

    async def _whole_bucket(self, method: str, bucket: Bucket, query: Mapping[str, str], body: bytes) -> web.Response:
        match method, sorted(query):
            case "HEAD", []:
                return web.Response(headers={"x-amz-bucket-region": "us-east-1"})
            case "GET", ["location"]:
                return xml("LocationConstraint", [])
            case "GET", ["versioning"]:
                return xml("VersioningConfiguration", [])
            case "GET", names if _LISTING.issuperset(names):
                return await bucket.list(query)
            case "POST", ["delete"]:
                return await bucket.delete_many(body)
            case "PUT", []:
                raise S3Error(409, "BucketAlreadyOwnedByYou", f"the bucket {bucket.name} is there already")
        raise not_implemented(f"{method} of a bucket with {sorted(query)}")

    async def _object(
        self,
        method: str,
        bucket: Bucket,
        key: Key,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> web.Response:
        match method, sorted(query):
            case "GET", []:
                return await bucket.get(key, headers)
            case "HEAD", []:
                return await bucket.head(key, headers)
            case "PUT", [] if "x-amz-copy-source" in headers:
                return await self._copy(bucket, key, headers)
            case "PUT", []:
                return await bucket.put(key, body, headers)
            case "DELETE", []:
                return await bucket.delete(key, headers)
            case "POST", ["uploads"]:
                return await bucket.begin_upload(key)
            case "PUT", ["partNumber", "uploadId"] if "x-amz-copy-source" not in headers:
                return await bucket.put_part(key, query, body)
            case "GET", ["uploadId"]:
                return await bucket.list_parts(key, query["uploadId"])
            case "POST", ["uploadId"]:
                return await bucket.end_upload(key, query["uploadId"], body, headers)
            case "DELETE", ["uploadId"]:
                return await bucket.abort_upload(key, query["uploadId"])
        raise not_implemented(f"{method} of an object with {sorted(query)}")

    async def _copy(self, bucket: Bucket, key: Key, headers: Mapping[str, str]) -> web.Response:
        source = urllib.parse.unquote(headers["x-amz-copy-source"]).removeprefix("/")
        name, _, source_key = source.partition("?")[0].partition("/")
        if name not in self._buckets:
            raise S3Error(404, "NoSuchBucket", f"there is no bucket {name!r} to copy from")
        return await bucket.copy(key, self._buckets[name], Key(source_key), headers)


async def _body(request: web.BaseRequest) -> bytes:
    if request.headers.get("expect", "").lower() == "100-continue":  # otherwise boto3 waits for a second
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    whole = bytearray()
    async for piece in request.content.iter_any():
        whole += piece
        if len(whole) > LARGEST_BODY:
            raise S3Error(400, "EntityTooLarge", f"a body may have {LARGEST_BODY} bytes; upload a larger one in parts")
    return bytes(whole)


def _translated(problem: storage.StorageError) -> S3Error:
    match problem:
        case storage.Missing():
            return S3Error(404, "NoSuchKey", str(problem))
        case storage.Conflict():
            return S3Error(412, "PreconditionFailed", str(problem))
        case storage.Denied():
            return S3Error(400, "InvalidArgument", str(problem))
        case storage.Unavailable():
            return S3Error(503, "ServiceUnavailable", str(problem))
        case _:
            return S3Error(500, "InternalError", str(problem))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
