"""The S3 operations on a bucket and its objects, over a file store.

An ETag is the version of the file store, which changes with every write and every edit of the file. It is not an MD5; it
has a dash, as for multipart uploads on S3, so that clients do not take it for one. The content type follows from the key.
"""

import email.utils
import mimetypes
import pathlib
import urllib.parse
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.s3 import conditions, documents, listing, uploads
from nstance.dev.s3.errors import S3Error, invalid, not_implemented, to_s3_error
from nstance.objects import errors as storage
from nstance.objects import file, keys
from nstance.objects.port import Head, Key, Version

Query = Mapping[str, str]
Headers = Mapping[str, str]

MAX_DELETED_OBJECTS = 1000  # by one request
MAX_OBJECT_BYTES = 5 << 40  # as on S3


class Bucket:
    def __init__(self, name: str, folder: pathlib.Path, *, clock: clocks.Clock, rng: clocks.Rng) -> None:
        self.name = name
        self.folder = folder
        self.store = file.FileStore(folder, clock=clock)
        self._uploads = uploads.Uploads(folder, rng)

    async def close(self) -> None:
        await self.store.close()

    async def get(self, key: Key, headers: Headers) -> web.Response:
        _check_key(key)
        found = await self.store.get(key, limit=MAX_OBJECT_BYTES)
        head = Head(found.version, len(found.body), (await self.store.head(key)).modified)
        answer = _about(key, head, headers)
        if answer.status != 304:
            first, last = conditions.parse_range(headers.get("range"), head.size)
            answer.body = found.body if last - first == head.size else found.body[first:last]
        return answer

    async def head(self, key: Key, headers: Headers) -> web.Response:
        _check_key(key)
        return _about(key, await self.store.head(key), headers)

    async def put(self, key: Key, body: bytes, headers: Headers) -> web.Response:
        return web.Response(headers={"ETag": _quoted(await self._write(key, body, headers))})

    async def delete(self, key: Key, headers: Headers) -> web.Response:
        if "if-match" in headers:
            raise not_implemented("DELETE with If-Match")
        await self.store.delete(key)
        return web.Response(status=204)

    async def delete_many(self, body: bytes) -> web.Response:
        request = documents.read(body, "Delete")
        objects = list(request.iter("Object"))
        if not 1 <= len(objects) <= MAX_DELETED_OBJECTS:
            raise S3Error(
                400, "MalformedXML", f"expected 1 to {MAX_DELETED_OBJECTS} objects to delete, found {len(objects)}"
            )
        unsupported = {child.tag for each in objects for child in each if child.text != "null"} - {"Key"}
        if unsupported:  # "null" is the version in a bucket without versioning
            raise not_implemented(f"deleting objects with {', '.join(sorted(unsupported))}")
        quiet = request.findtext("Quiet") == "true"
        nodes: list[documents.Node] = []
        for each in objects:
            name = each.findtext("Key") or ""
            try:
                await self.store.delete(Key(name))
            except storage.StorageError as problem:
                error = to_s3_error(problem)
                nodes.append(("Error", [("Key", name), ("Code", error.code), ("Message", error.message)]))
            else:
                nodes += [] if quiet else [("Deleted", [("Key", name)])]
        return xml("DeleteResult", nodes)

    async def list(self, query: Query) -> web.Response:
        prefix, delimiter, start = query.get("prefix", ""), query.get("delimiter", ""), query.get("start-after", "")
        size = listing.parse_page_size(query)
        token = query.get("continuation-token")
        after = listing.from_token(token) if token else listing.Position(start)
        keys = [key async for key in self.store.list(prefix, after=after.text)]
        page = listing.page(keys, prefix=prefix, delimiter=delimiter, after=after, size=size)
        heads = await self.store.heads(Key(key) for key in page.keys)
        encode = _encoding(query)
        nodes: list[documents.Node] = [("Name", self.name), ("Prefix", encode(prefix)), ("MaxKeys", str(size))]
        if delimiter:
            nodes.append(("Delimiter", encode(delimiter)))
        if "encoding-type" in query:
            nodes.append(("EncodingType", "url"))
        nodes.append(("IsTruncated", "false" if page.next is None else "true"))
        nodes.append(("KeyCount", str(len(heads) + len(page.prefixes))))
        nodes += [("StartAfter", encode(start))] if start else []
        nodes += [("ContinuationToken", token)] if token else []
        nodes += [("NextContinuationToken", page.next.token())] if page.next else []
        for key, head in heads.items():
            entry = [
                ("Key", encode(key)),
                ("LastModified", documents.timestamp(head.modified)),
                ("ETag", _quoted(head.version)),
                ("Size", str(head.size)),
                ("StorageClass", "STANDARD"),
            ]
            nodes.append(("Contents", entry))
        nodes += [("CommonPrefixes", [("Prefix", encode(common))]) for common in page.prefixes]
        return xml("ListBucketResult", nodes)

    async def start_upload(self, key: Key) -> web.Response:
        keys.check(key)
        nodes = [("Bucket", self.name), ("Key", key), ("UploadId", await self._uploads.start(key))]
        return xml("InitiateMultipartUploadResult", nodes)

    async def put_part(self, key: Key, query: Query, body: bytes) -> web.Response:
        etag = await self._uploads.store_part(key, query["uploadId"], query["partNumber"], body)
        return web.Response(headers={"ETag": _quoted(etag)})

    async def complete_upload(self, key: Key, upload: str, body: bytes, headers: Headers) -> web.Response:
        request = documents.read(body, "CompleteMultipartUpload")
        try:
            parts = [
                (int(part.findtext("PartNumber") or ""), conditions.unquote_etag(part.findtext("ETag") or ""))
                for part in request.iter("Part")
            ]
        except ValueError:
            raise S3Error(400, "MalformedXML", "expected a number for each part") from None
        version = await self._write(key, await self._uploads.join(key, upload, parts), headers)
        await self._uploads.end(key, upload)
        nodes = [("Location", f"/{self.name}/{key}"), ("Bucket", self.name), ("Key", key), ("ETag", _quoted(version))]
        return xml("CompleteMultipartUploadResult", nodes)

    async def abort_upload(self, key: Key, upload: str) -> web.Response:
        await self._uploads.end(key, upload)
        return web.Response(status=204)

    async def _write(self, key: Key, body: bytes, headers: Headers) -> Version:
        seen, absent = headers.get("if-match"), headers.get("if-none-match")
        if absent not in (None, "*"):
            raise not_implemented("a write with an If-None-Match other than *")
        if absent is not None and seen is not None:
            raise not_implemented("a write with both If-Match and If-None-Match")
        if absent is not None:
            return await self.store.create(key, body)
        if seen == "*":
            raise not_implemented("a write with If-Match: *")
        if seen is not None:
            return await self.store.replace(key, body, seen=Version(conditions.unquote_etag(seen)))
        return await self.store.put(key, body)


def _about(key: Key, head: Head, headers: Headers) -> web.Response:
    """The response to a read, without the body."""
    stored_headers = {
        "etag": _quoted(head.version),
        "last-modified": email.utils.formatdate(head.modified, usegmt=True),
        "accept-ranges": "bytes",
    }
    if conditions.is_unchanged(head.version, headers):
        return web.Response(status=304, headers=stored_headers)
    first, last = conditions.parse_range(headers.get("range"), head.size)
    stored_headers["content-type"] = mimetypes.guess_type(key)[0] or "binary/octet-stream"
    stored_headers["content-length"] = str(last - first)
    if last - first == head.size:
        return web.Response(headers=stored_headers)
    stored_headers["content-range"] = f"bytes {first}-{last - 1}/{head.size}"
    return web.Response(status=206, headers=stored_headers)


def xml(name: str, nodes: Sequence[documents.Node]) -> web.Response:
    return web.Response(body=documents.write(name, nodes), content_type="application/xml")


def _check_key(key: Key) -> None:
    """Many clients look for `folder/` first: a key that cannot exist is missing, not invalid."""
    if not keys.is_valid(key):
        raise S3Error(404, "NoSuchKey", f"no object {key[:80]!r}: a file cannot have this name")


def _encoding(query: Query) -> Callable[[str], str]:
    encoding = query.get("encoding-type")
    if encoding not in (None, "url"):
        raise invalid("encoding-type must be url")
    return _url_encoded if encoding else _check_text


def _url_encoded(text: str) -> str:
    return urllib.parse.quote(text, safe="/-_.~*")


def _check_text(text: str) -> str:
    if not documents.is_valid_text(text):
        raise invalid("expected characters that XML allows; use encoding-type=url")
    return text


def _quoted(version: str) -> str:
    return f'"{version}"'
