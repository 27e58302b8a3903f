import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.model import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("300ms", 0.3),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("2d", 172800),
        ("-1m", -60),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("5m0s", 300),
    ],
)
def test_parse(text: str, seconds: float) -> None:
    assert durations.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "1.5", "s", "1 s", "1S", "1e3s", "1s-1s", "٣s", "inf", "1h 30m", "9" * 200 + "s"]
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        durations.parse(text)


@given(st.text(max_size=40))
def test_any_text_gives_a_number_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(durations.parse(text), float)


@given(st.integers(-(10**12), 10**12))
def test_format_is_read_back(milliseconds: int) -> None:
    assert durations.parse(durations.format(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (5400, "1h30m"), (0.25, "250ms"), (-90, "-1m30s"), (86400, "1d")]
)
def test_format(seconds: float, text: str) -> None:
    assert durations.format(seconds) == text
