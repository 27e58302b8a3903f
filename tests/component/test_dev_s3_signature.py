"""Signatures and wrapped bodies, judged by the examples in Amazon's documentation of Signature Version 4."""

import asyncio
import calendar
import hashlib
import pathlib
import time

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


def verify(method: str, target: str, headers: dict[str, str], now: str = "20130524T000000Z") -> str:
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
    assert verify("GET", "/test.txt", GET) == EMPTY


def test_the_documented_presigned_address_verifies_for_a_day() -> None:
    host = {"Host": "examplebucket.s3.amazonaws.com"}
    for now in ("20130524T000000Z", "20130524T235959Z"):
        assert verify("GET", PRESIGNED, host, now) == signature.UNSIGNED
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


def test_the_hash_of_a_plain_body_is_checked() -> None:
    payload.check(b"", {}, EMPTY)
    with pytest.raises(S3Error, match="XAmzContentSHA256Mismatch"):
        payload.check(b"x", {}, EMPTY)
    with pytest.raises(S3Error, match="BadDigest"):
        payload.check(b"x", {"x-amz-checksum-crc32": "AAAAAA=="}, signature.UNSIGNED)
    with pytest.raises(S3Error, match="NotImplemented"):
        payload.check(b"x", {}, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")


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
