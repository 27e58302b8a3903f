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
from nstance.dev.s3 import documents, payload, presigned_v2, signature
from nstance.dev.s3.bucket import Bucket, xml
from nstance.dev.s3.errors import S3Error, not_implemented, translated
from nstance.objects import errors as storage
from nstance.objects.port import Key

log = logging.getLogger(__name__)

LARGEST_BODY = 512 * 1024 * 1024  # bodies are held in memory

_HARMLESS = frozenset({"x-id"})  # SDKs put the name of the operation into the query
_LISTING = frozenset(
    {"list-type", "prefix", "delimiter", "max-keys", "start-after", "continuation-token", "encoding-type", "marker"}
    | {"fetch-owner"}
)
_UPLOADS = frozenset(
    {"uploads", "prefix", "delimiter", "max-uploads", "key-marker", "upload-id-marker", "encoding-type"}
)
_PARTS = frozenset({"uploadId", "max-parts", "part-number-marker"})
_OVERRULED = frozenset(  # headers of the answer that the query may choose
    f"response-{name}"
    for name in (
        *("content-type", "content-language", "content-disposition", "content-encoding"),
        *("cache-control", "expires"),
    )
)
_UNKEPT = (  # headers that ask for what no file has
    *("x-amz-server-side-encryption-customer-", "x-amz-copy-source-server-side-encryption-"),
    *("x-amz-object-lock-", "x-amz-website-redirect-location", "x-amz-grant-", "x-amz-write-offset-bytes"),
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
            response = self._refusal(request, translated(problem), request_id)
        except OSError as problem:
            refused = S3Error(500, "InternalError", problem.strerror or str(problem))
            response = self._refusal(request, refused, request_id)
        response.headers["x-amz-request-id"] = request_id
        response.headers["Server"] = "nstance-dev-s3"
        log.debug("%s %s %d", request.method, request.raw_path.partition("?")[0], response.status)
        return response

    def _refusal(self, request: web.BaseRequest, problem: S3Error, request_id: str) -> web.Response:
        path = _printable(signature.split_target(request.raw_path)[0])
        if problem.status not in (404, 412):  # those two are everyday answers
            log.warning("%s %s refused: %s", request.method, path, problem)
        if request.method == "HEAD":
            return web.Response(status=problem.status)
        body = documents.error(problem.code, _printable(problem.message), resource=path, request_id=request_id)
        return web.Response(status=problem.status, body=body, content_type="application/xml")

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.method == "POST" and request.content_type == "multipart/form-data":
            raise not_implemented("an upload from a form (presigned POST)")
        path, pairs = signature.split_target(request.raw_path)
        host_bucket = self._host_bucket(request.headers.get("host", ""))
        signed, headers, query = self._verified(request, dict(pairs), host_bucket)
        name, _, key = (f"/{host_bucket}{path}" if host_bucket else path).removeprefix("/").partition("/")
        if not name:
            return self._list_buckets(request.method, query)
        body = payload.unwrap(await _body(request), headers, signed)
        if name not in self._buckets:
            hint = f"start the server with --bucket {name}=DIR"
            if request.method == "PUT" and not key:
                raise not_implemented(f"making the bucket {name!r} ({hint})")
            raise S3Error(404, "NoSuchBucket", f"there is no bucket {name!r}; {hint}")
        bucket = self._buckets[name]
        if key:
            return await self._object(request.method, bucket, Key(key), query, headers, body)
        return await self._whole_bucket(request.method, bucket, query, body)

    def _verified(
        self, request: web.BaseRequest, query: dict[str, str], host_bucket: str
    ) -> tuple[signature.Signed, Mapping[str, str], dict[str, str]]:
        """Who asks, and the headers and parameters that are left: a presigned URL may have headers among the latter."""
        headers = request.headers.copy()
        second = presigned_v2.claimed(query)
        for name in query:
            if name[:6].lower() == "x-amz-" or (second and name in ("content-type", "content-md5")):
                headers.setdefault(name, query[name])
        rest = {
            name: value
            for name, value in query.items()
            if name not in _HARMLESS
            and name[:6].lower() != "x-amz-"
            and not (second and name in presigned_v2.PARAMETERS)
            and (name, value) != ("versionId", "null")  # that of an object in a bucket without versions
        }
        method, target = request.method, request.raw_path
        credentials, clock = self._credentials, self._clock
        if second:
            signed = presigned_v2.verify(
                method, target, headers, host_bucket=host_bucket, credentials=credentials, clock=clock
            )
        else:
            signed = signature.verify(method, target, request.headers, credentials=credentials, clock=clock)
        return signed, headers, rest

    def _host_bucket(self, host: str) -> str:
        """The bucket, in the virtual-hosted style: the first part of the host's name."""
        first, _, rest = host.partition(".")
        virtual = first in self._buckets and rest and not rest.replace(".", "").partition(":")[0].isdigit()
        return first if virtual else ""

    def _list_buckets(self, method: str, query: Mapping[str, str]) -> web.Response:
        if method not in ("GET", "HEAD"):
            raise S3Error(405, "MethodNotAllowed", "only GET is allowed on /")
        nodes: list[documents.Node] = []
        for name, bucket in sorted(self._buckets.items()):
            if not name.startswith(query.get("prefix", "")):
                continue
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
            case "GET", names if "uploads" in names and _UPLOADS.issuperset(names):
                return await bucket.list_uploads(query)
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
        if method in ("PUT", "POST"):
            _refuse_unkept(headers)
        match method, sorted(query):
            case "GET", names if _OVERRULED.issuperset(names):
                return await bucket.get(key, headers, query)
            case "HEAD", names if _OVERRULED.issuperset(names):
                return await bucket.head(key, headers, query)
            case "GET", ["tagging"]:
                return await bucket.tags(key)
            case "PUT", [] if "x-amz-copy-source" in headers:
                return await bucket.copy(key, *self._source(headers), headers)
            case "PUT", []:
                return await bucket.put(key, body, headers)
            case "DELETE", []:
                return await bucket.delete(key, headers)
            case "POST", ["uploads"]:
                return await bucket.begin_upload(key, headers)
            case "PUT", ["partNumber", "uploadId"] if "x-amz-copy-source" in headers:
                return await bucket.copy_part(key, query, *self._source(headers), headers)
            case "PUT", ["partNumber", "uploadId"]:
                return await bucket.put_part(key, query, body)
            case "GET", names if "uploadId" in names and _PARTS.issuperset(names):
                return await bucket.list_parts(key, query)
            case "POST", ["uploadId"]:
                return await bucket.end_upload(key, query["uploadId"], body, headers)
            case "DELETE", ["uploadId"]:
                return await bucket.abort_upload(key, query["uploadId"])
        raise not_implemented(f"{method} of an object with {sorted(query)}")

    def _source(self, headers: Mapping[str, str]) -> tuple[Bucket, Key]:
        """What is copied. It is cut before it is decoded: a key may have a question mark."""
        path, _, version = headers["x-amz-copy-source"].partition("?")
        if version not in ("", "versionId=null"):
            raise not_implemented(f"copying with {version}")
        name, _, key = urllib.parse.unquote(path, errors="surrogateescape").removeprefix("/").partition("/")
        if name not in self._buckets:
            raise S3Error(404, "NoSuchBucket", f"there is no bucket {name!r} to copy from")
        return self._buckets[name], Key(key)


def _refuse_unkept(headers: Mapping[str, str]) -> None:
    for name in headers:
        if name.lower().startswith(_UNKEPT) or (name.lower() == "x-amz-tagging" and headers[name]):
            raise not_implemented(f"a write with {name.lower()}")
    if headers.get("x-amz-acl", "private") not in ("private", "bucket-owner-full-control"):
        raise S3Error(400, "AccessControlListNotSupported", "everything here is private; leave the ACL away")


async def _body(request: web.BaseRequest) -> bytes:
    if request.headers.get("expect", "").lower() == "100-continue":  # otherwise boto3 waits for a second
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    whole = bytearray()
    async for piece in request.content.iter_any():
        whole += piece
        if len(whole) > LARGEST_BODY:
            raise S3Error(400, "EntityTooLarge", f"a body may have {LARGEST_BODY} bytes; upload a larger one in parts")
    return bytes(whole)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
