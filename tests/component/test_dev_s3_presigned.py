"""Presigned URLs of both signatures, as boto3 and obstore make them, and requests that are signed by hand."""

import asyncio
import datetime
import http.client
import pathlib
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

import obstore
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from obstore.store import S3Store

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


async def test_presigned_addresses_work_until_they_are_changed(endpoint: str) -> None:
    def work(client: Client) -> None:
        def sign(what: str, seconds: int = 3600, **options: Any) -> str:
            named = {"Bucket": "dev"} if what.startswith("list") else {"Bucket": "dev", "Key": KEY}
            return str(client.generate_presigned_url(what, Params={**named, **options}, ExpiresIn=seconds))

        assert fetch(sign("put_object"), "PUT", b"one")[0] == 200
        assert fetch(sign("put_object"), "PUT", b"one", x_amz_meta_a="1")[0] == 501
        url = sign("get_object")
        assert fetch(url)[:2] == (200, b"one")
        assert fetch(url, Range="bytes=1-")[:2] == (206, b"ne")
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
        # One that has expired is among the tests of signatures.
        assert refused(sign("get_object", seconds=-5)) == (400, "AuthorizationQueryParametersError")
        assert fetch(sign("delete_object"), "DELETE")[0] == 204
        assert refused(url) == (404, "NoSuchKey")

    await using(endpoint, work, signature_version="s3v4")


async def test_signed_headers_hold(endpoint: str) -> None:
    def work(client: Client) -> None:
        given = {"Bucket": "dev", "Key": "k", "ContentType": "text/x-own"}
        url = client.generate_presigned_url("put_object", Params=given)
        assert fetch(url, "PUT", b"", content_type="text/other")[0] == 403
        assert fetch(url, "PUT", b"1", content_type="text/x-own")[0] == 200

    await using(endpoint, work, signature_version="s3v4")


async def test_uploads_from_forms_are_refused_by_name(endpoint: str) -> None:
    kind = "multipart/form-data; boundary=x"
    status, body, _ = await asyncio.to_thread(fetch, f"{endpoint}/dev", "POST", b"--x--", content_type=kind)
    assert (status, b"<Code>NotImplemented</Code>" in body) == (501, True)


async def test_the_bucket_may_be_in_the_name_of_the_host(endpoint: str) -> None:
    headers = {"Host": "dev.localhost", "X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}
    request = AWSRequest("PUT", "http://dev.localhost/k", headers=headers, data=b"1")
    S3SigV4Auth(Credentials("dev", "dev"), "s3", "us-east-1").add_auth(request)
    assert (await asyncio.to_thread(fetch, f"{endpoint}/k", "PUT", b"1", **dict(request.headers)))[0] == 200


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
