"""Where to connect to: host:port, several with commas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.wire import peer
from nstance.wire.channel import parse_addresses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b.example:65535", [("a", 1), ("b.example", 65535)]),
        ("[::1]:8994", [("::1", 8994)]),
        (["10.0.0.1:8994", "[fe80::1]:1"], [("10.0.0.1", 8994), ("fe80::1", 1)]),
    ],
)
def test_addresses(text: str | list[str], found: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == found


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:1,", "::1:5", "a:１", "a:1:2", "[]:1", []]
)
def test_anything_else_is_refused(text: str | list[str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_addresses(text)


@given(st.text(max_size=40))
def test_any_text_gives_addresses_or_one_kind_of_error(text: str) -> None:
    try:
        found = parse_addresses(text)
    except ValueError:
        return
    assert found
    assert all(host and 0 < port < 65536 for host, port in found)


@pytest.mark.parametrize(
    ("address", "host"),
    [(("10.0.0.1", 5), "10.0.0.1"), (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"), (("::1", 5, 0, 0), "::1"), (None, "")],
)
def test_host_of(address: object, host: str) -> None:
    assert peer.host_of(address) == host
