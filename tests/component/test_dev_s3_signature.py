"""Signatures and wrapped bodies, judged by the examples in Amazon's documentation of Signature Version 4."""

import asyncio
import base64
import calendar
import contextlib
import hashlib
import pathlib
import time
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from nstance import clock
from nstance.dev.s3 import main, payload, signature
from nstance.dev.s3.errors import S3Error

SECRETS = {"AKIAIOSFODNN7EXAMPLE": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
SCOPE = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
EMPTY = hashlib.sha256(b"").hexdigest()


class FixedClock(clock.SystemClock):
    def __init__(self, stamp: str = "20130524T000000Z") -> None:
        super().__init__()
        self.now = float(calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")))

    def wall(self) -> float:
        return self.now


def verify(method: str, target: str, headers: dict[str, str], now: str = "20130524T000000Z") -> signature.Signed:
    return signature.verify(method, target, CIMultiDict(headers), credentials=SECRETS, clock=FixedClock(now))


def authorization(signed: str, value: str) -> str:
    return f"AWS4-HMAC-SHA256 Credential={SCOPE},SignedHeaders={signed},Signature={value}"


GET = {
    "Host": "examplebucket.s3.amazonaws.com",
    "Range": "bytes=0-9",
    "x-amz-content-sha256": EMPTY,
    "x-amz-date": "20130524T000000Z",
    "Authorization": authorization(
        "host;range;x-amz-content-sha256;x-amz-date", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    ),
}

PRESIGNED = (
    "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z"
    "&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
)


def test_the_documented_request_verifies() -> None:
    assert verify("GET", "/test.txt", GET).payload == EMPTY


def test_the_documented_presigned_address_verifies_for_a_day() -> None:
    host = {"Host": "examplebucket.s3.amazonaws.com"}
    for now in ("20130524T000000Z", "20130524T235959Z"):
        assert verify("GET", PRESIGNED, host, now).payload == signature.UNSIGNED
    for now in ("20130525T000001Z", "20130523T230000Z"):
        with pytest.raises(S3Error, match="AccessDenied"):
            verify("GET", PRESIGNED, host, now)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Range": "bytes=0-99"}, "SignatureDoesNotMatch"),
        ({"Host": "other.s3.amazonaws.com"}, "SignatureDoesNotMatch"),
        ({"x-amz-content-sha256": "0" * 64}, "SignatureDoesNotMatch"),
        ({"x-amz-date": "20130524T000001Z"}, "SignatureDoesNotMatch"),
        ({"x-amz-date": "20130524T003000Z"}, "RequestTimeTooSkewed"),
        ({"x-amz-date": "20130525T000000Z"}, "AuthorizationHeaderMalformed"),
        ({"x-amz-date": "20130524"}, "AccessDenied"),
        ({"Authorization": "Basic ZGV2OmRldg=="}, "AuthorizationHeaderMalformed"),
        ({"Authorization": GET["Authorization"].replace("AKIA", "BKIA")}, "InvalidAccessKeyId"),
        ({"Authorization": GET["Authorization"].replace("/s3/", "/ec2/")}, "AuthorizationHeaderMalformed"),
        ({"Authorization": GET["Authorization"].replace("host;", "")}, "AccessDenied"),
        ({"Authorization": GET["Authorization"][:-1] + "2"}, "SignatureDoesNotMatch"),
    ],
)
def test_a_changed_request_is_refused(change: dict[str, str], code: str) -> None:
    with pytest.raises(S3Error, match=code):
        verify("GET", "/test.txt", {**GET, **change})


@pytest.mark.parametrize("missing", ["Authorization", "x-amz-content-sha256", "x-amz-date"])
def test_a_request_without_its_signature_is_refused(missing: str) -> None:
    with pytest.raises(S3Error):
        verify("GET", "/test.txt", {name: value for name, value in GET.items() if name != missing})


def test_path_query_and_method_are_covered() -> None:
    for method, target in (("PUT", "/test.txt"), ("GET", "/test.tx"), ("GET", "/test.txt?acl")):
        with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
            verify(method, target, GET)


PARTS = [b"a" * 65536, b"a" * 1024, b""]


def upload(kind: str, seed: str, **more: str) -> dict[str, str]:
    headers = {
        "Host": "s3.amazonaws.com",
        "x-amz-date": "20130524T000000Z",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        "x-amz-content-sha256": kind,
        "Content-Encoding": "aws-chunked",
        "x-amz-decoded-content-length": "66560",
        **more,
    }
    return {**headers, "Authorization": authorization(";".join(sorted(name.lower() for name in headers)), seed)}


SIGNED = upload(
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    **{"Content-Length": "66824"},
)
SIGNED_CHUNKS = [
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
]
TRAILED = upload(
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
    **{"x-amz-trailer": "x-amz-checksum-crc32c"},
)
TRAILED_CHUNKS = [
    "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
    "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
    "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
]
TRAILER = (
    b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
    b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
)


def chunks(signatures: list[str], parts: list[bytes] = PARTS, ending: bytes = b"\r\n") -> bytes:
    body = b""
    for part, each in zip(parts, signatures, strict=True):
        body += f"{len(part):x};chunk-signature={each}\r\n".encode() + part + (b"\r\n" if part else b"")
    return body + ending


def unwrapped(headers: dict[str, str], body: bytes) -> bytes:
    return payload.unwrap(body, CIMultiDict(headers), verify("PUT", "/examplebucket/chunkObject.txt", headers))


def test_the_documented_chunked_upload_is_read() -> None:
    assert unwrapped(SIGNED, chunks(SIGNED_CHUNKS)) == b"a" * 66560


def test_the_documented_upload_with_a_trailer_is_read() -> None:
    assert unwrapped(TRAILED, chunks(TRAILED_CHUNKS, ending=TRAILER)) == b"a" * 66560


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b"aaaa\r\n", b"aaab\r\n", 1),
        lambda body: body.replace(b"ad80c730", b"ad80c731"),
        lambda body: body[: body.index(b"400;")] + body[body.index(b"0;chunk-signature=b6") :],
        lambda body: body[:-100],
        lambda body: body.replace(b"10000;", b"zzz;"),
        lambda body: body.replace(b"10000;", b"10001;"),
        lambda body: body.replace(b"10000;", b"ffff;"),
        lambda body: body.replace(b"10000;", b"-1;"),
        lambda body: b"",
    ],
)
def test_a_spoiled_chunked_upload_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(S3Error):
        unwrapped(SIGNED, change(chunks(SIGNED_CHUNKS)))


def test_a_spoiled_trailer_is_refused() -> None:
    with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
        unwrapped(TRAILED, chunks(TRAILED_CHUNKS, ending=TRAILER.replace(b"sOO8", b"sOO9")))


def unsigned(kind: str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER") -> signature.Signed:
    return signature.Signed(kind, b"", "", "", "")


def test_an_unsigned_trailer_is_checked() -> None:
    """What boto3 sends over TLS."""
    digest = base64.b64encode(zlib.crc32(b"hello").to_bytes(4, "big")).decode()
    body = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n"
    assert payload.unwrap(body % digest.encode(), {}, unsigned()) == b"hello"
    with pytest.raises(S3Error, match="BadDigest"):
        payload.unwrap(body % b"AAAAAA==", {}, unsigned())
    with pytest.raises(S3Error, match="IncompleteBody"):
        payload.unwrap(body % digest.encode(), {"x-amz-decoded-content-length": "6"}, unsigned())


def test_the_hash_of_a_plain_body_is_checked() -> None:
    with pytest.raises(S3Error, match="XAmzContentSHA256Mismatch"):
        payload.unwrap(b"x", {}, unsigned(EMPTY))


@given(st.binary(max_size=200))
def test_no_bytes_upset_the_reader_of_chunks(body: bytes) -> None:
    with contextlib.suppress(S3Error):
        payload.unwrap(body, {}, unsigned())


@given(
    st.text(max_size=60),
    st.dictionaries(st.sampled_from(["authorization", "x-amz-date", "host"]), st.text(max_size=40)),
)
def test_no_text_upsets_the_verifier(target: str, headers: dict[str, str]) -> None:
    with pytest.raises(S3Error):
        verify("GET", "/" + target, headers)


async def test_a_mistake_in_the_request_line_costs_an_answer_only(tmp_path: pathlib.Path) -> None:
    """Bytes that are no request leave the server running."""

    async def send(port: int, text: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(text)
        async with asyncio.timeout(30):
            answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return answer

    async with main.serving({"dev": tmp_path}, port=0) as port:
        assert b" 400 " in await send(port, b"\x16\x03\x01 nonsense\r\n\r\n")
        for target in (b"/", b"/dev/%00", b"/dev/%ff%fe", b"//", b"/dev?x=%zz", b"/%2e%2e/x"):
            assert b" 403 " in await send(port, b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
