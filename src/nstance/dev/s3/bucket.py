"""The S3 operations on a bucket and its objects, over a file store.

An ETag is the version of the file store, which changes with every write and every edit of the file. It is not an MD5; it
has a dash, as for multipart uploads on S3, so that clients do not take it for one.
"""

import email.utils
import pathlib
import urllib.parse
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.s3 import conditions, documents, listing, object_headers, uploads
from nstance.dev.s3.errors import S3Error, invalid, not_implemented, to_s3_error
from nstance.objects import errors as storage
from nstance.objects import file, keys
from nstance.objects.port import Head, Key, Stored, Version

Query = Mapping[str, str]
Headers = Mapping[str, str]

MAX_DELETED_OBJECTS = 1000  # by one request
MAX_OBJECT_BYTES = 5 << 40  # as on S3


class Bucket:
    def __init__(self, name: str, folder: pathlib.Path, *, clock: clocks.Clock, rng: clocks.Rng) -> None:
        self.name = name
        self.folder = folder
        self.store = file.FileStore(folder, clock=clock)
        self._clock = clock
        self._headers = object_headers.ObjectHeaders(folder, rng)
        self._uploads = uploads.Uploads(folder, rng)

    async def close(self) -> None:
        await self.store.close()

    async def get(self, key: Key, headers: Headers, query: Query) -> web.Response:
        _check_key(key)
        found = await self.store.get(key, limit=MAX_OBJECT_BYTES)
        head = Head(found.version, len(found.body), (await self.store.head(key)).modified)
        answer = self._read(key, head, headers, query)
        if answer.status != 304:
            first, last = conditions.parse_range(headers.get("range"), head.size)
            answer.body = found.body if last - first == head.size else found.body[first:last]
        return answer

    async def head(self, key: Key, headers: Headers, query: Query) -> web.Response:
        _check_key(key)
        return self._read(key, await self.store.head(key), headers, query)

    def _read(self, key: Key, head: Head, headers: Headers, query: Query) -> web.Response:
        """The response to a read, without the body. `query` can override response headers."""
        stored_headers = {
            "etag": _quoted(head.version),
            "last-modified": email.utils.formatdate(head.modified, usegmt=True),
            "accept-ranges": "bytes",
        }
        if conditions.is_unchanged(head, headers):
            return web.Response(status=304, headers=stored_headers)
        stored_headers["content-type"] = object_headers.guess_type(key)
        stored_headers |= self._headers.read(key, head.version)  # in lower case, as clients expect
        stored_headers |= {
            name.removeprefix("response-"): object_headers.check_header(name, query[name]) for name in query
        }
        first, last = conditions.parse_range(headers.get("range"), head.size)
        stored_headers["content-length"] = str(last - first)
        if last - first == head.size:
            return web.Response(headers=stored_headers)
        stored_headers["content-range"] = f"bytes {first}-{last - 1}/{head.size}"
        return web.Response(status=206, headers=stored_headers)

    async def put(self, key: Key, body: bytes, headers: Headers) -> web.Response:
        version = await self._store(key, body, headers, object_headers.storable_headers(key, headers))
        return web.Response(headers={"ETag": _quoted(version)})

    async def copy(self, key: Key, source: "Bucket", source_key: Key, headers: Headers) -> web.Response:
        found = await source._copy_source(source_key, headers)
        replaced = headers.get("x-amz-metadata-directive", "COPY") == "REPLACE"
        stored_headers = (
            object_headers.storable_headers(key, headers)
            if replaced
            else source._headers.read(source_key, found.version)
        )
        version = await self._store(key, found.body, headers, stored_headers)
        head = await self.store.head(key)
        return xml(
            "CopyObjectResult", [("ETag", _quoted(version)), ("LastModified", documents.timestamp(head.modified))]
        )

    async def _copy_source(self, key: Key, headers: Headers) -> Stored:
        """The source of a copy, if its conditions hold."""
        found = await self.store.get(key, limit=MAX_OBJECT_BYTES)
        head = Head(found.version, len(found.body), (await self.store.head(key)).modified)
        conditions.check_copy_source(head, headers)
        return found

    async def tags(self, key: Key) -> web.Response:
        """Always empty. The aws CLI asks for them before it copies a large object."""
        await self.store.head(key)
        return xml("Tagging", [("TagSet", [])])

    async def delete(self, key: Key, headers: Headers) -> web.Response:
        if "if-match" in headers:
            raise not_implemented("DELETE with If-Match")
        await self._delete(key)
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
                await self._delete(Key(name))
            except storage.StorageError as problem:
                error = to_s3_error(problem)
                nodes.append(("Error", [("Key", name), ("Code", error.code), ("Message", error.message)]))
            else:
                nodes += [] if quiet else [("Deleted", [("Key", name)])]
        return xml("DeleteResult", nodes)

    async def _delete(self, key: Key) -> None:
        await self.store.delete(key)
        self._headers.forget(key)

    async def list(self, query: Query) -> web.Response:
        is_version_2 = query.get("list-type") == "2"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        size = listing.parse_number("max-keys", query, listing.MAX_PAGE_SIZE)
        start = query.get("start-after" if is_version_2 else "marker", "")
        token = query.get("continuation-token") if is_version_2 else None
        # In version 1, a marker that is a common prefix means all keys below it.
        after = (
            listing.from_token(token)
            if token
            else listing.Position(start, _is_prefix(start, delimiter) and not is_version_2)
        )
        keys = [key async for key in self.store.list(prefix, after=after.text)]
        page = listing.page(keys, prefix=prefix, delimiter=delimiter, after=after, size=size)
        heads = await self.store.heads(Key(key) for key in page.keys)
        encode = _encoding(query)
        nodes: list[documents.Node] = [("Name", self.name), ("Prefix", encode(prefix)), ("MaxKeys", str(size))]
        if delimiter:
            nodes.append(("Delimiter", encode(delimiter)))
        if "encoding-type" in query:
            nodes.append(("EncodingType", "url"))
        nodes.append(("IsTruncated", _bool_text(page.next is not None)))
        if is_version_2:
            nodes.append(("KeyCount", str(len(heads) + len(page.prefixes))))
            nodes += [("StartAfter", encode(start))] if start else []
            nodes += [("ContinuationToken", token)] if token else []
            nodes += [("NextContinuationToken", page.next.token())] if page.next else []
        else:
            nodes.append(("Marker", encode(start)))
            nodes += [("NextMarker", encode(page.next.text))] if page.next else []
        for key, head in heads.items():
            nodes.append(
                (
                    "Contents",
                    [
                        ("Key", encode(key)),
                        ("LastModified", documents.timestamp(head.modified)),
                        ("ETag", _quoted(head.version)),
                        ("Size", str(head.size)),
                        ("StorageClass", "STANDARD"),
                    ],
                )
            )
        nodes += [("CommonPrefixes", [("Prefix", encode(common))]) for common in page.prefixes]
        return xml("ListBucketResult", nodes)

    async def start_upload(self, key: Key, headers: Headers) -> web.Response:
        keys.check(key)
        upload = await self._uploads.start(key, object_headers.storable_headers(key, headers))
        nodes = [("Bucket", self.name), ("Key", key), ("UploadId", upload)]
        return xml("InitiateMultipartUploadResult", nodes)

    async def put_part(self, key: Key, query: Query, body: bytes) -> web.Response:
        etag = await self._uploads.store_part(key, query["uploadId"], query["partNumber"], body)
        return web.Response(headers={"ETag": _quoted(etag)})

    async def copy_part(
        self, key: Key, query: Query, source: "Bucket", source_key: Key, headers: Headers
    ) -> web.Response:
        found = await source._copy_source(source_key, headers)
        first, last = conditions.parse_copy_range(headers.get("x-amz-copy-source-range"), len(found.body))
        etag = await self._uploads.store_part(key, query["uploadId"], query["partNumber"], found.body[first:last])
        now = documents.timestamp(self._clock.wall())
        return xml("CopyPartResult", [("ETag", _quoted(etag)), ("LastModified", now)])

    async def list_parts(self, key: Key, query: Query) -> web.Response:
        upload, after = query["uploadId"], listing.parse_number("part-number-marker", query, 0)
        size = listing.parse_number("max-parts", query, listing.MAX_PAGE_SIZE)
        parts = [part for part in await self._uploads.parts(key, upload) if part[0] > after]
        nodes: list[documents.Node] = [
            ("Bucket", self.name),
            ("Key", key),
            ("UploadId", upload),
            ("PartNumberMarker", str(after)),
            ("MaxParts", str(size)),
            ("IsTruncated", _bool_text(len(parts) > size > 0)),
        ]
        nodes += [("NextPartNumberMarker", str(part[0])) for part in parts[:size][-1:]]
        for number, etag, length in parts[:size]:
            nodes.append(("Part", [("PartNumber", str(number)), ("ETag", _quoted(etag)), ("Size", str(length))]))
        return xml("ListPartsResult", nodes)

    async def list_uploads(self, query: Query) -> web.Response:
        if query.get("delimiter"):
            raise not_implemented("a listing of uploads with a delimiter")
        encode = _encoding(query)
        size = listing.parse_number("max-uploads", query, listing.MAX_PAGE_SIZE)
        key, upload = query.get("key-marker", ""), query.get("upload-id-marker", "")
        found = [
            each
            for each in await self._uploads.all()
            if each.key.startswith(query.get("prefix", ""))
            and (each.key > key or (upload and each.key == key and each.id > upload))
        ]
        nodes: list[documents.Node] = [
            ("Bucket", self.name),
            ("KeyMarker", encode(key)),
            ("UploadIdMarker", encode(upload)),
            ("Prefix", encode(query.get("prefix", ""))),
            ("MaxUploads", str(size)),
            ("IsTruncated", _bool_text(len(found) > size > 0)),
        ]
        nodes += [("EncodingType", "url")] if "encoding-type" in query else []
        for each in found[:size][-1:]:
            nodes += [("NextKeyMarker", encode(each.key)), ("NextUploadIdMarker", each.id)]
        for each in found[:size]:
            started = documents.timestamp(each.started)
            nodes.append(("Upload", [("Key", encode(each.key)), ("UploadId", each.id), ("Initiated", started)]))
        return xml("ListMultipartUploadsResult", nodes)

    async def complete_upload(self, key: Key, upload: str, body: bytes, headers: Headers) -> web.Response:
        request = documents.read(body, "CompleteMultipartUpload")
        try:
            parts = [
                (int(part.findtext("PartNumber") or ""), conditions.unquote_etag(part.findtext("ETag") or ""))
                for part in request.iter("Part")
            ]
        except ValueError:
            raise S3Error(400, "MalformedXML", "expected a number for each part") from None
        body_of_parts = await self._uploads.join(key, upload, parts)
        version = await self._store(key, body_of_parts, headers, self._uploads.headers(key, upload))
        await self._uploads.end(key, upload)
        nodes = [("Location", f"/{self.name}/{key}"), ("Bucket", self.name), ("Key", key), ("ETag", _quoted(version))]
        return xml("CompleteMultipartUploadResult", nodes)

    async def abort_upload(self, key: Key, upload: str) -> web.Response:
        await self._uploads.end(key, upload)
        return web.Response(status=204)

    async def _store(self, key: Key, body: bytes, headers: Headers, stored_headers: Headers) -> Version:
        version = await self._write(key, body, headers)
        self._headers.write(key, version, stored_headers)
        return version

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


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


def _url_encoded(text: str) -> str:
    return urllib.parse.quote(text, safe="/-_.~*")


def _check_text(text: str) -> str:
    if not documents.is_valid_text(text):
        raise invalid("expected characters that XML allows; use encoding-type=url")
    return text


def _is_prefix(text: str, delimiter: str) -> bool:
    return bool(delimiter) and text.endswith(delimiter)


def _quoted(version: str) -> str:
    return f'"{version}"'
