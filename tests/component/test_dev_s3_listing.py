"""Pages of a listing, put together, are the listing."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.dev.s3 import listing
from nstance.dev.s3.errors import S3Error

keys = st.lists(st.text(alphabet="ab/-é", min_size=1, max_size=5), max_size=12, unique=True).map(sorted)


@given(
    keys,
    st.text(alphabet="ab/", max_size=2),
    st.sampled_from(["", "/", "b/", "-"]),
    st.integers(1, 5),
    st.text("ab/", max_size=3),
)
def test_pages_are_the_whole(names: list[str], prefix: str, delimiter: str, size: int, start: str) -> None:
    wanted = [name for name in names if name.startswith(prefix) and name > start]
    expected: list[str] = []
    for name in wanted:
        end = name.find(delimiter, len(prefix)) if delimiter else -1
        shown = name if end < 0 else name[: end + len(delimiter)]
        if shown not in expected:
            expected.append(shown)
    place, found = listing.Position(start), []
    while True:
        page = listing.page(
            [name for name in names if name.startswith(prefix)],
            prefix=prefix,
            delimiter=delimiter,
            after=place,
            size=size,
        )
        assert len(page.keys) + len(page.prefixes) <= size
        found += sorted(page.keys + page.prefixes)
        if page.next is None:
            break
        assert len(page.keys) + len(page.prefixes) == size
        place = listing.from_token(page.next.token())
    assert found == expected


@given(st.text(), st.booleans())
def test_tokens_come_back(text: str, whole: bool) -> None:
    place = listing.Position(text, whole)
    assert listing.from_token(place.token()) == place


@given(st.text())
def test_made_up_tokens_are_refused_or_harmless(token: str) -> None:
    with contextlib.suppress(S3Error):
        assert isinstance(listing.from_token(token), listing.Position)


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "", "١"])
def test_bad_page_sizes_are_refused(text: str) -> None:
    with pytest.raises(S3Error, match="max-keys"):
        listing.parse_page_size({"max-keys": text})


def test_a_page_has_a_thousand_at_most() -> None:
    assert listing.parse_page_size({"max-keys": "5000"}) == 1000
    assert listing.parse_page_size({}) == 1000
