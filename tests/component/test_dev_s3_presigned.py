"""Presigned URLs of both signatures, as boto3 and obstore make them, and requests that are signed by hand."""

import asyncio
import base64
import datetime
import hashlib
import hmac
import http.client
import os
import pathlib
import urllib.parse
import zlib
from collections.abc import AsyncIterator
from typing import Any

import obstore
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from obstore.store import S3Store

from nstance import clock
from nstance.dev.s3 import presigned_v2
from nstance.dev.s3.errors import S3Error
from support import s3_server
from support.s3_boto3 import Client, using

KEY = "k ü+%/&?"


@pytest.fixture
async def endpoint(tmp_path: pathlib.Path) -> AsyncIterator[str]:
    async with s3_server.serving(tmp_path) as endpoint:
        yield endpoint


def fetch(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes, str | None]:
    """Sends what is asked and nothing more: a header that a library adds could be one that is signed."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"{parts.path}?{parts.query}".rstrip("?"), body=body, headers=named)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("content-type")
    finally:
        connection.close()


@pytest.mark.parametrize("version", [None, "s3", "s3v4"])  # None is what boto3 does on its own
async def test_presigned_addresses_work_until_they_are_changed(endpoint: str, version: str | None) -> None:
    def work(client: Client) -> None:
        def sign(what: str, seconds: int = 3600, **options: Any) -> str:
            named = {"Bucket": "dev"} if what.startswith("list") else {"Bucket": "dev", "Key": KEY}
            url = client.generate_presigned_url(what, Params={**named, **options}, ExpiresIn=seconds)
            assert ("X-Amz-Signature" in url) == (version == "s3v4")
            return str(url)

        assert fetch(sign("put_object"), "PUT", b"one")[0] == 200
        assert fetch(sign("put_object"), "PUT", b"one", x_amz_meta_a="1")[0] == (200 if version == "s3v4" else 403)
        url = sign("get_object")
        assert fetch(url)[:2] == (200, b"one")
        assert fetch(url, Range="bytes=1-")[:2] == (206, b"ne")
        assert fetch(sign("get_object", ResponseContentType="a/b")) == (200, b"one", "a/b")
        assert fetch(sign("list_objects_v2", Prefix="k"))[0] == 200
        assert fetch(sign("head_object"), "HEAD")[0] == 200

        def refused(url: str, method: str = "GET") -> tuple[int, str]:
            status, body, _ = fetch(url, method)
            return status, body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()

        wrong = (403, "SignatureDoesNotMatch")
        assert refused(url.replace("/k", "/other")) == wrong
        assert refused(url, "DELETE") == wrong
        assert refused(url.replace("Expires=", "Expires=1")) in (wrong, (400, "AuthorizationQueryParametersError"))
        assert refused(url + "&response-content-type=a/b") == wrong
        assert refused(url.replace("=dev", "=nobody", 1)) == (403, "InvalidAccessKeyId")
        assert refused(url.partition("?")[0]) == (403, "AccessDenied")
        if version != "s3v4":  # the other one's clock is turned in the tests of signatures
            assert refused(sign("get_object", seconds=-5)) == (403, "AccessDenied")
        else:
            assert refused(sign("get_object", seconds=-5)) == (400, "AuthorizationQueryParametersError")
        assert fetch(sign("delete_object"), "DELETE")[0] == 204
        assert refused(url) == (404, "NoSuchKey")

    await using(endpoint, work, signature_version=version)


@pytest.mark.parametrize("version", [None, "s3v4"])
async def test_signed_headers_hold(endpoint: str, version: str | None) -> None:
    def work(client: Client) -> None:
        given = {"Bucket": "dev", "Key": "k", "ContentType": "text/x-own", "Metadata": {"a": "1"}}
        url = client.generate_presigned_url("put_object", Params=given)
        assert fetch(url, "PUT", b"", content_type="text/other", x_amz_meta_a="1")[0] == 403
        assert fetch(url, "PUT", b"", content_type="text/x-own", x_amz_meta_a="2")[0] == 403
        assert fetch(url, "PUT", b"1", content_type="text/x-own", x_amz_meta_a="1")[0] == 200
        head = client.head_object(Bucket="dev", Key="k")
        assert (head["ContentType"], head["Metadata"]) == ("text/x-own", {"a": "1"})
        if version is None:  # version 2: its URLs have the headers in them: they need not be sent once more
            assert fetch(url, "PUT", b"2")[0] == 200
            assert client.head_object(Bucket="dev", Key="k")["Metadata"] == {"a": "1"}

    await using(endpoint, work, signature_version=version)


async def test_a_path_that_is_no_utf8_is_not_another_key(endpoint: str, tmp_path: pathlib.Path) -> None:
    """Version 2 signs the path as it was sent, so any bytes may verify."""
    expires = int(clock.SystemClock().wall()) + 60
    text = f"PUT\n\n\n{expires}\n/dev/%ff"
    signed = base64.b64encode(hmac.new(b"dev", text.encode(), hashlib.sha1).digest()).decode()
    query = urllib.parse.urlencode({"AWSAccessKeyId": "dev", "Signature": signed, "Expires": expires})
    status, body, _ = await asyncio.to_thread(fetch, f"{endpoint}/dev/%ff?{query}", "PUT", b"1")
    assert (status, b"<Code>InvalidArgument</Code>" in body) == (400, True)
    assert os.listdir(tmp_path) == [".nstance"]


async def test_uploads_from_forms_are_refused_by_name(endpoint: str) -> None:
    kind = "multipart/form-data; boundary=x"
    status, body, _ = await asyncio.to_thread(fetch, f"{endpoint}/dev", "POST", b"--x--", content_type=kind)
    assert (status, b"<Code>NotImplemented</Code>" in body) == (501, True)


async def test_a_bucket_in_the_name_of_the_host_is_signed(endpoint: str) -> None:
    expires = int(clock.SystemClock().wall()) + 60
    text = f"PUT\n\n\n{expires}\n/dev/k"
    signed = base64.b64encode(hmac.new(b"dev", text.encode(), hashlib.sha1).digest()).decode()
    query = urllib.parse.urlencode({"AWSAccessKeyId": "dev", "Signature": signed, "Expires": expires})
    assert (await asyncio.to_thread(fetch, f"{endpoint}/k?{query}", "PUT", b"1", Host="dev.localhost"))[0] == 200


async def test_obstore_signs_too(endpoint: str) -> None:
    store = S3Store(
        "dev",
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="dev",
        secret_access_key="dev",
        client_options={"allow_http": True},
    )
    hour = datetime.timedelta(hours=1)
    put = await obstore.sign_async(store, "PUT", "a/k ü+", hour)
    assert (await asyncio.to_thread(fetch, put, "PUT", b"one"))[0] == 200
    get = await obstore.sign_async(store, "GET", "a/k ü+", hour)
    assert (await asyncio.to_thread(fetch, get))[:2] == (200, b"one")
    assert (await asyncio.to_thread(fetch, put))[0] == 403


@pytest.mark.parametrize(("sent", "kept"), [("aws-chunked", None), ("gzip,aws-chunked", "gzip")])
async def test_a_body_with_a_trailer_is_kept_without_its_wrapping(
    endpoint: str, tmp_path: pathlib.Path, sent: str, kept: str | None
) -> None:
    """As the SDKs send it over TLS; boto3 does not over plain HTTP, so its signer is called by hand."""

    def put(checksum: int) -> int:
        trailer = base64.b64encode(checksum.to_bytes(4, "big")).decode()
        body = f"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:{trailer}\r\n\r\n".encode()
        headers = {
            "Content-Encoding": sent,
            "X-Amz-Trailer": "x-amz-checksum-crc32",
            "X-Amz-Decoded-Content-Length": "5",
        }
        request = AWSRequest("PUT", f"{endpoint}/dev/k", headers=headers, data=body)
        request.context["checksum"] = {"request_algorithm": {"in": "trailer"}}
        S3SigV4Auth(Credentials("dev", "dev"), "s3", "us-east-1").add_auth(request)
        assert request.headers["X-Amz-Content-SHA256"] == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
        return fetch(f"{endpoint}/dev/k", "PUT", body, **dict(request.headers))[0]

    def work(client: Client) -> None:
        assert put(zlib.crc32(b"other")) == 400
        assert put(zlib.crc32(b"hello")) == 200
        assert client.head_object(Bucket="dev", Key="k").get("ContentEncoding") == kept

    await using(endpoint, work)
    assert (tmp_path / "k").read_bytes() == b"hello"


class FixedClock(clock.SystemClock):
    def wall(self) -> float:
        return 1175139620.0


def test_the_documented_address_verifies_until_it_expires() -> None:
    """The example in Amazon's documentation of query string authentication, version 2."""
    target = "/photos/puppy.jpg?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D&Expires="

    def verify(expires: str) -> None:
        presigned_v2.verify(
            "GET",
            target + expires,
            {"host": "johnsmith.s3.amazonaws.com"},
            host_bucket="johnsmith",
            credentials={"AKIAIOSFODNN7EXAMPLE": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"},
            clock=FixedClock(),
        )

    verify("1175139620")
    for expires, code in (
        ("1175139621", "SignatureDoesNotMatch"),
        ("1175139619", "AccessDenied"),
        ("x", "AccessDenied"),
    ):
        with pytest.raises(S3Error, match=code):
            verify(expires)
