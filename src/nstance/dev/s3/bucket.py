"""What can be done with a bucket and its objects, in the words of S3, over a file store.

An ETag here is the file store's version: it changes with every write and when a person edits the file. It is not an MD5
(it has a dash, as those of multipart uploads on S3 have, so clients do not take it for one).
"""

import email.utils
import mimetypes
import pathlib
import re
import urllib.parse
from collections.abc import Mapping, Sequence

from aiohttp import web

from nstance import clock as clocks
from nstance.dev.s3 import documents, listing, uploads
from nstance.dev.s3.errors import S3Error, invalid, not_implemented
from nstance.objects import file
from nstance.objects.port import Head, Key, Version

Query = Mapping[str, str]
Headers = Mapping[str, str]

MOST_DELETED = 1000


class Bucket:
    def __init__(self, name: str, folder: pathlib.Path, *, clock: clocks.Clock, chance: clocks.Chance) -> None:
        self.name = name
        self.folder = folder
        self.store = file.FileStore(folder, clock=clock)
        self._uploads = uploads.Uploads(folder, chance)

    async def close(self) -> None:
        await self.store.close()

    async def get(self, key: Key, headers: Headers) -> web.Response:
        found = await self.store.get(key)
        head = Head(found.version, len(found.body), (await self.store.head(key)).modified)
        early = _unwanted(head, headers)
        if early is not None:
            return early
        described = _described(key, head)
        first, last = _range(headers.get("range"), head.size)
        if (first, last) == (0, head.size):
            return web.Response(body=found.body, headers=described)
        described["Content-Range"] = f"bytes {first}-{last - 1}/{head.size}"
        return web.Response(status=206, body=found.body[first:last], headers=described)

    async def head(self, key: Key, headers: Headers) -> web.Response:
        head = await self.store.head(key)
        early = _unwanted(head, headers)
        if early is not None:
            return early
        return web.Response(headers={**_described(key, head), "Content-Length": str(head.size)})

    async def put(self, key: Key, body: bytes, headers: Headers) -> web.Response:
        return web.Response(headers={"ETag": _quoted(await self._write(key, body, headers))})

    async def copy(self, key: Key, source: "Bucket", source_key: Key, headers: Headers) -> web.Response:
        found = await source.store.get(source_key)
        wanted = headers.get("x-amz-copy-source-if-match")
        if wanted is not None and _unquoted(wanted) != found.version:
            raise S3Error(412, "PreconditionFailed", "the source has another ETag")
        version = await self._write(key, found.body, headers)
        head = await self.store.head(key)
        return xml(
            "CopyObjectResult", [("ETag", _quoted(version)), ("LastModified", documents.timestamp(head.modified))]
        )

    async def delete(self, key: Key, headers: Headers) -> web.Response:
        if "if-match" in headers:
            raise not_implemented("DELETE with If-Match")
        await self.store.delete(key)
        return web.Response(status=204)

    async def delete_many(self, body: bytes) -> web.Response:
        request = documents.read(body, "Delete")
        names = [element.findtext("Key") or "" for element in request.iter("Object")]
        if not 1 <= len(names) <= MOST_DELETED:
            raise S3Error(400, "MalformedXML", f"expected 1 to {MOST_DELETED} objects to delete, found {len(names)}")
        for name in names:
            await self.store.delete(Key(name))
        quiet = request.findtext("Quiet") == "true"
        return xml("DeleteResult", [] if quiet else [("Deleted", [("Key", name)]) for name in names])

    async def list(self, query: Query) -> web.Response:
        second = query.get("list-type") == "2"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        size = listing.page_size(query.get("max-keys"))
        start = query.get("start-after" if second else "marker", "")
        token = query.get("continuation-token") if second else None
        # A marker that is a common prefix stands for everything below it: that is how version 1 names the next page.
        after = (
            listing.from_token(token) if token else listing.Place(start, _is_prefix(start, delimiter) and not second)
        )
        keys = [key async for key in self.store.list(prefix, after=after.text)]
        page = listing.page(keys, prefix=prefix, delimiter=delimiter, after=after, size=size)
        heads = await self.store.heads(Key(key) for key in page.keys)
        encode = _url_encoded if query.get("encoding-type") == "url" else _shown
        nodes: list[documents.Node] = [("Name", self.name), ("Prefix", encode(prefix)), ("MaxKeys", str(size))]
        if delimiter:
            nodes.append(("Delimiter", encode(delimiter)))
        if query.get("encoding-type", "url") != "url":
            raise invalid("encoding-type must be url")
        if "encoding-type" in query:
            nodes.append(("EncodingType", "url"))
        nodes.append(("IsTruncated", "true" if page.next else "false"))
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

    async def begin_upload(self, key: Key) -> web.Response:
        upload = await self._uploads.begin(key)
        nodes = [("Bucket", self.name), ("Key", key), ("UploadId", upload)]
        return xml("InitiateMultipartUploadResult", nodes)

    async def put_part(self, key: Key, query: Query, body: bytes) -> web.Response:
        etag = await self._uploads.store_part(key, query["uploadId"], query["partNumber"], body)
        return web.Response(headers={"ETag": f'"{etag}"'})

    async def list_parts(self, key: Key, upload: str) -> web.Response:
        nodes: list[documents.Node] = [
            ("Bucket", self.name),
            ("Key", key),
            ("UploadId", upload),
            ("IsTruncated", "false"),
        ]
        for number, etag, size in await self._uploads.parts(key, upload):
            nodes.append(("Part", [("PartNumber", str(number)), ("ETag", f'"{etag}"'), ("Size", str(size))]))
        return xml("ListPartsResult", nodes)

    async def end_upload(self, key: Key, upload: str, body: bytes, headers: Headers) -> web.Response:
        request = documents.read(body, "CompleteMultipartUpload")
        try:
            parts = [
                (int(part.findtext("PartNumber") or ""), _unquoted(part.findtext("ETag") or ""))
                for part in request.iter("Part")
            ]
        except ValueError:
            raise S3Error(400, "MalformedXML", "a part has no number") from None
        whole = await self._uploads.join(key, upload, parts)
        version = await self._write(key, whole, headers)
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
            return await self.store.replace(key, body, seen=Version(_unquoted(seen)))
        return await self.store.put(key, body)


def _unwanted(head: Head, headers: Headers) -> web.Response | None:
    """The answer to a read whose conditions do not hold."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is not None and match != "*" and head.version not in _etags(match):
        raise S3Error(412, "PreconditionFailed", "the object has another ETag")
    if none_match is not None and (none_match == "*" or head.version in _etags(none_match)):
        return web.Response(status=304, headers={"ETag": _quoted(head.version)})
    return None


def _etags(header: str) -> list[str]:
    return [_unquoted(part) for part in header.split(",")]


def _range(header: str | None, size: int) -> tuple[int, int]:
    """From and to (exclusive). What cannot be read is no range, as HTTP says."""
    match = re.fullmatch(r"bytes=([0-9]{0,19})-([0-9]{0,19})", header.strip()) if header else None
    if match is None or match[1] == match[2] == "":
        return 0, size
    if match[1] == "":
        first, last = max(0, size - int(match[2])), size
    else:
        first, last = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < first:
            return 0, size
    if first >= last:
        raise S3Error(416, "InvalidRange", f"the object has {size} bytes, the range is {header}")
    return first, last


def _described(key: Key, head: Head) -> dict[str, str]:
    return {
        "ETag": _quoted(head.version),
        "Last-Modified": email.utils.formatdate(head.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": mimetypes.guess_type(key)[0] or "binary/octet-stream",
    }


def xml(name: str, nodes: Sequence[documents.Node]) -> web.Response:
    return web.Response(body=documents.write(name, nodes), content_type="application/xml")


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


def _unquoted(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')
