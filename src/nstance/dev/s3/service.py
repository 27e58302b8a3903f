"""Handles requests: verifies the signature, finds the bucket and runs the operation.

It works on the raw request line, because the signature covers it and a URL library would normalize keys. Unsupported
features are rejected with NotImplemented: a client must never believe that a condition or an option was honored.
"""

import itertools
import logging
from collections.abc import Mapping

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.s3 import documents, payload, signature
from nstance.dev.s3.bucket import Bucket, xml
from nstance.dev.s3.errors import S3Error, not_implemented, to_s3_error
from nstance.objects import errors as storage
from nstance.objects.port import Key

log = logging.getLogger(__name__)

CREDENTIALS = {"dev": "dev"}  # access key: secret key
MAX_BODY_BYTES = 512 * 1024 * 1024  # bodies are held in memory

_IGNORED = frozenset({"x-id"})  # SDKs send the name of the operation
_LISTING = frozenset(
    {"list-type", "prefix", "delimiter", "max-keys", "start-after", "continuation-token"}
    | {"encoding-type", "fetch-owner"}
)
_UNSUPPORTED_HEADERS = (  # features that files do not have
    *("x-amz-server-side-encryption-customer-", "x-amz-copy-source", "x-amz-object-lock-", "x-amz-meta-"),
    *("x-amz-website-redirect-location", "x-amz-grant-", "x-amz-write-offset-bytes"),
)


class Service:
    def __init__(self, buckets: Mapping[str, Bucket], *, clock: clocks.Clock) -> None:
        self._buckets = buckets
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
        signed = signature.verify(
            request.method, request.raw_path, request.headers, credentials=CREDENTIALS, clock=self._clock
        )
        path, pairs = signature.split_target(request.raw_path)
        query = {name: value for name, value in pairs if name not in _IGNORED and name[:6].lower() != "x-amz-"}
        host_bucket = self._host_bucket(request.headers.get("host", ""))
        name, _, key = (f"/{host_bucket}{path}" if host_bucket else path).removeprefix("/").partition("/")
        if not name:
            return self._list_buckets(request.method, query)
        body = await _body(request)
        payload.check(body, request.headers, signed)
        if name not in self._buckets:
            if request.method == "PUT" and not key:
                raise not_implemented(f"creating the bucket {name!r}")
            raise S3Error(404, "NoSuchBucket", f"the bucket {name!r} does not exist; use {', '.join(self._buckets)}")
        bucket = self._buckets[name]
        if key:
            return await self._object(request, bucket, Key(key), query, body)
        return await self._bucket(request.method, bucket, query, body)

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
            case "GET", names if query.get("list-type") == "2" and _LISTING.issuperset(names):
                return await bucket.list(query)
            case "POST", ["delete"]:
                return await bucket.delete_many(body)
            case "PUT", []:
                raise S3Error(409, "BucketAlreadyOwnedByYou", f"the bucket {bucket.name} exists already")
            case _:
                raise not_implemented(f"{method} of a bucket with {sorted(query)}")

    async def _object(
        self, request: web.BaseRequest, bucket: Bucket, key: Key, query: Mapping[str, str], body: bytes
    ) -> web.Response:
        method, headers = request.method, request.headers
        if method in ("PUT", "POST"):
            _reject_unsupported(headers)
        match method, sorted(query):
            case "GET", []:
                return await bucket.get(key, headers)
            case "HEAD", []:
                return await bucket.head(key, headers)
            case "PUT", []:
                return await bucket.put(key, body, headers)
            case "DELETE", []:
                return await bucket.delete(key, headers)
            case "POST", ["uploads"]:
                return await bucket.start_upload(key)
            case "PUT", ["partNumber", "uploadId"]:
                return await bucket.put_part(key, query, body)
            case "POST", ["uploadId"]:
                return await bucket.complete_upload(key, query["uploadId"], body, headers)
            case "DELETE", ["uploadId"]:
                return await bucket.abort_upload(key, query["uploadId"])
            case _:
                raise not_implemented(f"{method} of an object with {sorted(query)}")


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
