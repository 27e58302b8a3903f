"""What can be done with a bucket and its objects, in the words of S3, over a file store.

An ETag here is the file store's version: it changes with every write and when a person edits the file. It is not an MD5
(it has a dash, as those of multipart uploads on S3 have, so clients do not take it for one).
"""

import email.utils
import pathlib
import urllib.parse
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.s3 import conditions, documents, kept, listing, uploads
from nstance.dev.s3.errors import S3Error, invalid, not_implemented, translated
from nstance.objects import errors as storage
from nstance.objects import file, keys
from nstance.objects.port import Head, Key, Stored, Version

Query = Mapping[str, str]
Headers = Mapping[str, str]

MOST_DELETED = 1000
MAX_OBJECT = 5 << 40  # bytes, as on S3


class Bucket:
    def __init__(self, name: str, folder: pathlib.Path, *, clock: clocks.Clock, rng: clocks.Rng) -> None:
        self.name = name
        self.folder = folder
        self.store = file.FileStore(folder, clock=clock)
        self._clock = clock
        self._kept = kept.Kept(folder, rng)
        self._uploads = uploads.Uploads(folder, rng)

    async def close(self) -> None:
        await self.store.close()

    async def get(self, key: Key, headers: Headers, query: Query) -> web.Response:
        _check_possible(key)
        found = await self.store.get(key, limit=MAX_OBJECT)
        head = Head(found.version, len(found.body), (await self.store.head(key)).modified)
        answer = self._read(key, head, headers, query)
        if answer.status != 304:
            first, last = conditions.span(headers.get("range"), head.size)
            answer.body = found.body if last - first == head.size else found.body[first:last]
        return answer

    async def head(self, key: Key, headers: Headers, query: Query) -> web.Response:
        _check_possible(key)
        return self._read(key, await self.store.head(key), headers, query)

    def _read(self, key: Key, head: Head, headers: Headers, query: Query) -> web.Response:
        """The answer to a read, without the bytes. `query` may overrule headers of the answer."""
        described = {
            "etag": _quoted(head.version),
            "last-modified": email.utils.formatdate(head.modified, usegmt=True),
            "accept-ranges": "bytes",
        }
        if conditions.unchanged(head, headers):
            return web.Response(status=304, headers=described)
        described["content-type"] = kept.guessed(key)
        described |= self._kept.read(key, head.version)  # in small letters: so clients want the names of metadata
        described |= {name.removeprefix("response-"): kept.sendable(name, query[name]) for name in query}
        first, last = conditions.span(headers.get("range"), head.size)
        described["content-length"] = str(last - first)
        if last - first == head.size:
            return web.Response(headers=described)
        described["content-range"] = f"bytes {first}-{last - 1}/{head.size}"
        return web.Response(status=206, headers=described)

    async def put(self, key: Key, body: bytes, headers: Headers) -> web.Response:
        version = await self._store(key, body, headers, kept.wanted(key, headers))
        return web.Response(headers={"ETag": _quoted(version)})

    async def copy(self, key: Key, source: "Bucket", source_key: Key, headers: Headers) -> web.Response:
        found = await source._copied(source_key, headers)
        replaced = headers.get("x-amz-metadata-directive", "COPY") == "REPLACE"
        described = kept.wanted(key, headers) if replaced else source._kept.read(source_key, found.version)
        version = await self._store(key, found.body, headers, described)
        head = await self.store.head(key)
        return xml(
            "CopyObjectResult", [("ETag", _quoted(version)), ("LastModified", documents.timestamp(head.modified))]
        )

    async def _copied(self, key: Key, headers: Headers) -> Stored:
        """The object that is copied from here, if it is the one that is meant."""
        found = await self.store.get(key, limit=MAX_OBJECT)
        head = Head(found.version, len(found.body), (await self.store.head(key)).modified)
        conditions.copied(head, headers)
        return found

    async def tags(self, key: Key) -> web.Response:
        """None, ever. The aws CLI asks before it copies a large object."""
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
        if not 1 <= len(objects) <= MOST_DELETED:
            raise S3Error(400, "MalformedXML", f"expected 1 to {MOST_DELETED} objects to delete, found {len(objects)}")
        more = {child.tag for each in objects for child in each if child.text != "null"} - {"Key"}
        if more:  # "null" is the version of an object in a bucket without versions
            raise not_implemented(f"deleting objects with {', '.join(sorted(more))}")
        quiet = request.findtext("Quiet") == "true"
        nodes: list[documents.Node] = []
        for each in objects:
            name = each.findtext("Key") or ""
            try:
                await self._delete(Key(name))
            except storage.StorageError as problem:
                refused = translated(problem)
                nodes.append(("Error", [("Key", name), ("Code", refused.code), ("Message", refused.message)]))
            else:
                nodes += [] if quiet else [("Deleted", [("Key", name)])]
        return xml("DeleteResult", nodes)

    async def _delete(self, key: Key) -> None:
        await self.store.delete(key)
        self._kept.forget(key)

    async def list(self, query: Query) -> web.Response:
        second = query.get("list-type") == "2"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        size = listing.number("max-keys", query, listing.LARGEST_PAGE)
        start = query.get("start-after" if second else "marker", "")
        token = query.get("continuation-token") if second else None
        # A marker that is a common prefix stands for everything below it: that is how version 1 names the next page.
        after = (
            listing.from_token(token) if token else listing.Place(start, _is_prefix(start, delimiter) and not second)
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
        nodes.append(("IsTruncated", _truth(page.next is not None)))
        if second:
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

    async def begin_upload(self, key: Key, headers: Headers) -> web.Response:
        keys.check(key)
        upload = await self._uploads.begin(key, kept.wanted(key, headers))
        nodes = [("Bucket", self.name), ("Key", key), ("UploadId", upload)]
        return xml("InitiateMultipartUploadResult", nodes)

    async def put_part(self, key: Key, query: Query, body: bytes) -> web.Response:
        etag = await self._uploads.store_part(key, query["uploadId"], query["partNumber"], body)
        return web.Response(headers={"ETag": _quoted(etag)})

    async def copy_part(
        self, key: Key, query: Query, source: "Bucket", source_key: Key, headers: Headers
    ) -> web.Response:
        found = await source._copied(source_key, headers)
        first, last = conditions.copied_span(headers.get("x-amz-copy-source-range"), len(found.body))
        etag = await self._uploads.store_part(key, query["uploadId"], query["partNumber"], found.body[first:last])
        now = documents.timestamp(self._clock.wall())
        return xml("CopyPartResult", [("ETag", _quoted(etag)), ("LastModified", now)])

    async def list_parts(self, key: Key, query: Query) -> web.Response:
        upload, after = query["uploadId"], listing.number("part-number-marker", query, 0)
        size = listing.number("max-parts", query, listing.LARGEST_PAGE)
        parts = [part for part in await self._uploads.parts(key, upload) if part[0] > after]
        nodes: list[documents.Node] = [
            ("Bucket", self.name),
            ("Key", key),
            ("UploadId", upload),
            ("PartNumberMarker", str(after)),
            ("MaxParts", str(size)),
            ("IsTruncated", _truth(len(parts) > size > 0)),
        ]
        nodes += [("NextPartNumberMarker", str(part[0])) for part in parts[:size][-1:]]
        for number, etag, length in parts[:size]:
            nodes.append(("Part", [("PartNumber", str(number)), ("ETag", _quoted(etag)), ("Size", str(length))]))
        return xml("ListPartsResult", nodes)

    async def list_uploads(self, query: Query) -> web.Response:
        if query.get("delimiter"):
            raise not_implemented("a listing of uploads with a delimiter")
        encode = _encoding(query)
        size = listing.number("max-uploads", query, listing.LARGEST_PAGE)
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
            ("IsTruncated", _truth(len(found) > size > 0)),
        ]
        nodes += [("EncodingType", "url")] if "encoding-type" in query else []
        for each in found[:size][-1:]:
            nodes += [("NextKeyMarker", encode(each.key)), ("NextUploadIdMarker", each.id)]
        for each in found[:size]:
            begun = documents.timestamp(each.begun)
            nodes.append(("Upload", [("Key", encode(each.key)), ("UploadId", each.id), ("Initiated", begun)]))
        return xml("ListMultipartUploadsResult", nodes)

    async def end_upload(self, key: Key, upload: str, body: bytes, headers: Headers) -> web.Response:
        request = documents.read(body, "CompleteMultipartUpload")
        try:
            parts = [
                (int(part.findtext("PartNumber") or ""), conditions.unquoted(part.findtext("ETag") or ""))
                for part in request.iter("Part")
            ]
        except ValueError:
            raise S3Error(400, "MalformedXML", "a part has no number") from None
        whole = await self._uploads.join(key, upload, parts)
        version = await self._store(key, whole, headers, self._uploads.headers(key, upload))
        await self._uploads.end(key, upload)
        nodes = [("Location", f"/{self.name}/{key}"), ("Bucket", self.name), ("Key", key), ("ETag", _quoted(version))]
        return xml("CompleteMultipartUploadResult", nodes)

    async def abort_upload(self, key: Key, upload: str) -> web.Response:
        await self._uploads.end(key, upload)
        return web.Response(status=204)

    async def _store(self, key: Key, body: bytes, headers: Headers, described: Headers) -> Version:
        version = await self._write(key, body, headers)
        self._kept.write(key, version, described)
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
            return await self.store.replace(key, body, seen=Version(conditions.unquoted(seen)))
        return await self.store.put(key, body)


def xml(name: str, nodes: Sequence[documents.Node]) -> web.Response:
    return web.Response(body=documents.write(name, nodes), content_type="application/xml")


def _check_possible(key: Key) -> None:
    """Many clients look for `folder/` before they go on: what cannot exist is missing, and not a mistake."""
    if not keys.is_valid(key):
        raise S3Error(404, "NoSuchKey", f"no object {key[:80]!r}: a file cannot have this name")


def _encoding(query: Query) -> Callable[[str], str]:
    asked = query.get("encoding-type")
    if asked not in (None, "url"):
        raise invalid("encoding-type must be url")
    return _url_encoded if asked else _shown


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _url_encoded(text: str) -> str:
    return urllib.parse.quote(text, safe="/-_.~*")


def _shown(text: str) -> str:
    if not documents.possible(text):
        raise invalid("XML cannot hold one of these characters; ask with encoding-type=url")
    return text


def _is_prefix(text: str, delimiter: str) -> bool:
    return bool(delimiter) and text.endswith(delimiter)


def _quoted(version: str) -> str:
    return f'"{version}"'
