"""No text in a condition or a range upsets the server."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from nstance.dev.s3 import conditions
from nstance.dev.s3.errors import S3Error
from nstance.objects.port import Version

digits = st.text(alphabet="0123456789-=bytes, :GMTJanMon+\x00(", max_size=40)
anything = st.one_of(st.text(max_size=60), digits)


@given(st.dictionaries(st.sampled_from(["if-match", "if-none-match"]), anything))
def test_conditions(headers: dict[str, str]) -> None:
    with contextlib.suppress(S3Error):
        assert conditions.is_unchanged(Version("1-2"), headers) in (True, False)


@given(anything, st.integers(0, 20))
def test_ranges_lie_within_the_object(header: str, size: int) -> None:
    with contextlib.suppress(S3Error):
        first, last = conditions.parse_range(header, size)
        assert 0 <= first <= last <= size
