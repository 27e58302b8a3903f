"""No text in a condition, a range, a header to keep or a presigned URL upsets the server."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from nstance import clock
from nstance.dev.s3 import conditions, object_headers, presigned_v2
from nstance.dev.s3.errors import S3Error
from nstance.objects.port import Head, Version

HEAD = Head(Version("1-2"), 10, 1_000_000.0)

digits = st.text(alphabet="0123456789-=bytes, :GMTJanMon+\x00(", max_size=40)
anything = st.one_of(st.text(max_size=60), digits)


@given(st.dictionaries(st.sampled_from(["match", "none-match", "modified-since", "unmodified-since"]), anything))
def test_conditions(given_headers: dict[str, str]) -> None:
    headers = {f"if-{name}": value for name, value in given_headers.items()}
    with contextlib.suppress(S3Error):
        assert conditions.is_unchanged(HEAD, headers) in (True, False)


@given(anything, st.integers(0, 20))
def test_ranges_lie_within_the_object(header: str, size: int) -> None:
    for read in (conditions.parse_range, conditions.parse_copy_range):
        with contextlib.suppress(S3Error):
            first, last = read(header, size)
            assert 0 <= first <= last <= size


@given(st.dictionaries(st.sampled_from(["content-type", "content-encoding", "expires", "x-amz-meta-a"]), anything))
def test_kept_headers_can_be_sent(headers: dict[str, str]) -> None:
    with contextlib.suppress(S3Error):
        assert all(value.isprintable() for value in object_headers.storable_headers("k", headers).values())


@given(anything, st.dictionaries(st.sampled_from(["x-amz-meta-a", "content-type"]), anything))
def test_presigned_addresses(more: str, headers: dict[str, str]) -> None:
    target = f"/dev/k?AWSAccessKeyId=dev&Signature={more}&Expires=9999999999&{more}"
    with contextlib.suppress(S3Error):
        presigned_v2.verify(
            "GET", target, headers, host_bucket="", credentials={"dev": "dev"}, clock=clock.SystemClock()
        )
        raise AssertionError(f"accepted {target}")
