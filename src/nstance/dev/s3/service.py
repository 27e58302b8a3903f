"""Handles requests: verifies the signature, finds the bucket and runs the operation.

It works on the raw request line, because the signature covers it and a URL library would normalize keys. Unsupported
features are rejected with NotImplemented: a client must never believe that a condition or an option was honored.
"""

import itertools
import logging
import urllib.parse
from collections.abc import Mapping

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.s3 import documents, payload, presigned_v2, signature
from nstance.dev.s3.bucket import Bucket, xml
from nstance.dev.s3.errors import S3Error, not_implemented, to_s3_error
from nstance.objects import errors as storage
from nstance.objects.port import Key

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 512 * 1024 * 1024  # bodies are held in memory

_IGNORED = frozenset({"x-id"})  # SDKs send the name of the operation
_LISTING = frozenset(
    {"list-type", "prefix", "delimiter", "max-keys", "start-after", "continuation-token", "encoding-type", "marker"}
    | {"fetch-owner"}
)
_UPLOADS = frozenset(
    {"uploads", "prefix", "delimiter", "max-uploads", "key-marker", "upload-id-marker", "encoding-type"}
)
_PARTS = frozenset({"uploadId", "max-parts", "part-number-marker"})
_RESPONSE_HEADERS = frozenset(  # that the query can override
    f"response-{name}"
    for name in (
        *("content-type", "content-language", "content-disposition", "content-encoding"),
        *("cache-control", "expires"),
    )
)
_UNSUPPORTED_HEADERS = (  # features that files do not have
    *("x-amz-server-side-encryption-customer-", "x-amz-copy-source-server-side-encryption-"),
    *("x-amz-object-lock-", "x-amz-website-redirect-location", "x-amz-grant-", "x-amz-write-offset-bytes"),
)


class Service:
    def __init__(self, buckets: Mapping[str, Bucket], *, credentials: Mapping[str, str], clock: clocks.Clock) -> None:
        self._buckets = buckets
        self._credentials = credentials
        self._clock = clock
        self._request_numbers = itertools.count(1)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        request_id = f"{next(self._request_numbers):016X}"
        try:
            response = await self._answer(request)
        except S3Error as problem:
            response = self._error_response(request, problem, request_id)
        except storage.StorageError as problem:
            response = self._error_response(request, to_s3_error(problem), request_id)
        except OSError as problem:
            error = S3Error(500, "InternalError", problem.strerror or str(problem))
            response = self._error_response(request, error, request_id)
        response.headers["x-amz-request-id"] = request_id
        response.headers["Server"] = "nstance-dev-s3"
        log.debug("%s %s %d", request.method, request.raw_path.partition("?")[0], response.status)
        return response

    def _error_response(self, request: web.BaseRequest, problem: S3Error, request_id: str) -> web.Response:
        path = _printable(signature.split_target(request.raw_path)[0])
        if problem.status not in (404, 412):  # these are common
            log.warning("%s %s rejected: %s", request.method, path, problem)
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
                raise not_implemented(f"creating the bucket {name!r} ({hint})")
            raise S3Error(404, "NoSuchBucket", f"the bucket {name!r} does not exist; {hint}")
        bucket = self._buckets[name]
        if key:
            return await self._object(request.method, bucket, Key(key), query, headers, body)
        return await self._bucket(request.method, bucket, query, body)

    def _verified(
        self, request: web.BaseRequest, query: dict[str, str], host_bucket: str
    ) -> tuple[signature.Signed, Mapping[str, str], dict[str, str]]:
        """The signer, the headers and the other parameters. A presigned URL may contain headers."""
        headers = request.headers.copy()
        is_version_2 = presigned_v2.is_presigned(query)
        for name in query:
            if name[:6].lower() == "x-amz-" or (is_version_2 and name in ("content-type", "content-md5")):
                headers.setdefault(name, query[name])
        parameters = {
            name: value
            for name, value in query.items()
            if name not in _IGNORED
            and name[:6].lower() != "x-amz-"
            and not (is_version_2 and name in presigned_v2.PARAMETERS)
            and (name, value) != ("versionId", "null")  # the version in a bucket without versioning
        }
        method, target = request.method, request.raw_path
        credentials, clock = self._credentials, self._clock
        if is_version_2:
            signed = presigned_v2.verify(
                method, target, headers, host_bucket=host_bucket, credentials=credentials, clock=clock
            )
        else:
            signed = signature.verify(method, target, request.headers, credentials=credentials, clock=clock)
        return signed, headers, parameters

    def _host_bucket(self, host: str) -> str:
        """The bucket in a virtual-hosted request: the first part of the host name."""
        first, _, rest = host.partition(".")
        is_virtual = first in self._buckets and rest and not rest.replace(".", "").partition(":")[0].isdigit()
        return first if is_virtual else ""

    def _list_buckets(self, method: str, query: Mapping[str, str]) -> web.Response:
        if method not in ("GET", "HEAD"):
            raise S3Error(405, "MethodNotAllowed", "only GET is allowed on /")
        nodes: list[documents.Node] = []
        for name, bucket in sorted(self._buckets.items()):
            if not name.startswith(query.get("prefix", "")):
                continue
            created = documents.timestamp(bucket.folder.stat().st_mtime)
            nodes.append(("Bucket", [("Name", name), ("CreationDate", created)]))
        owner: documents.Node = ("Owner", [("ID", "dev"), ("DisplayName", "dev")])
        return xml("ListAllMyBucketsResult", [owner, ("Buckets", nodes)])

    async def _bucket(self, method: str, bucket: Bucket, query: Mapping[str, str], body: bytes) -> web.Response:
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
                raise S3Error(409, "BucketAlreadyOwnedByYou", f"the bucket {bucket.name} exists already")
        raise not_implemented(f"{method} of a bucket with {sorted(query)}")

    async def _object(
        self, method: str, bucket: Bucket, key: Key, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> web.Response:
        if method in ("PUT", "POST"):
            _reject_unsupported(headers)
        match method, sorted(query):
            case "GET", names if _RESPONSE_HEADERS.issuperset(names):
                return await bucket.get(key, headers, query)
            case "HEAD", names if _RESPONSE_HEADERS.issuperset(names):
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
                return await bucket.start_upload(key, headers)
            case "PUT", ["partNumber", "uploadId"] if "x-amz-copy-source" in headers:
                return await bucket.copy_part(key, query, *self._source(headers), headers)
            case "PUT", ["partNumber", "uploadId"]:
                return await bucket.put_part(key, query, body)
            case "GET", names if "uploadId" in names and _PARTS.issuperset(names):
                return await bucket.list_parts(key, query)
            case "POST", ["uploadId"]:
                return await bucket.complete_upload(key, query["uploadId"], body, headers)
            case "DELETE", ["uploadId"]:
                return await bucket.abort_upload(key, query["uploadId"])
        raise not_implemented(f"{method} of an object with {sorted(query)}")

    def _source(self, headers: Mapping[str, str]) -> tuple[Bucket, Key]:
        """The source of a copy. It is split before decoding, because a key may contain a question mark."""
        path, _, version = headers["x-amz-copy-source"].partition("?")
        if version not in ("", "versionId=null"):
            raise not_implemented(f"copying with {version}")
        name, _, key = urllib.parse.unquote(path, errors="surrogateescape").removeprefix("/").partition("/")
        if name not in self._buckets:
            raise S3Error(404, "NoSuchBucket", f"the source bucket {name!r} does not exist")
        return self._buckets[name], Key(key)


def _reject_unsupported(headers: Mapping[str, str]) -> None:
    for name in headers:
        if name.lower().startswith(_UNSUPPORTED_HEADERS) or (name.lower() == "x-amz-tagging" and headers[name]):
            raise not_implemented(f"a write with {name.lower()}")
    if headers.get("x-amz-acl", "private") not in ("private", "bucket-owner-full-control"):
        raise S3Error(400, "AccessControlListNotSupported", "only private objects are supported; remove the ACL")


async def _body(request: web.BaseRequest) -> bytes:
    if request.headers.get("expect", "").lower() == "100-continue":  # otherwise boto3 waits for one second
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise S3Error(
                400, "EntityTooLarge", f"expected at most {MAX_BODY_BYTES} bytes; upload larger objects in parts"
            )
    return bytes(body)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
