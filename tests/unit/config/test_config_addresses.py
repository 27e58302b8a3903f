"""Binding and advertising: spellings, defaults, and who moves when ports are shifted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.config import addresses
from nstance.config.addresses import Address, Service

BIND = {service: Address("", port) for service, port in addresses.PORTS.items()}


def primary() -> str:
    return "10.9.9.9"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":8990", "", 8990),
        ("0.0.0.0:1", "0.0.0.0", 1),
        ("[::]:65535", "::", 65535),
        ("[fe80::1]:80", "fe80::1", 80),
        ("my-host.example:8080", "my-host.example", 8080),
    ],
)
def test_parse(text: str, host: str, port: int) -> None:
    assert addresses.parse(text) == Address(host, port)
    assert str(addresses.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8990",
        "a:",
        ":0",
        ":65536",
        ":-1",
        ":٣",
        "::1:80",
        "[x]:80",
        "[1.2.3.4]:80",
        "a b:80",
        "a/b:80",
        "-a:80",
        ":8990 ",
        "a:1,b:2",
        ":" + "9" * 5000,
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        addresses.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = addresses.parse(text)
    except ValueError:
        return
    assert addresses.parse(str(address)) == address


def test_a_list_names_every_server_of_the_shard() -> None:
    advertised = addresses.parse_advertised("10.0.0.1:8992, [::1]:8992")
    assert advertised == (Address("10.0.0.1", 8992), Address("::1", 8992))
    assert addresses.show(advertised) == "10.0.0.1:8992,[::1]:8992"


def test_what_is_not_advertised_is_advertised_as_it_is_bound_under_the_primary_host() -> None:
    found = addresses.resolve_endpoints({**BIND, Service.AGENT: Address("127.0.0.1", 7)}, {}, primary=primary)
    assert found.bind[Service.HEALTH] == Address("", 8990)
    assert found.advertise[Service.OPERATOR] == (Address("10.9.9.9", 8993),)
    assert found.advertise[Service.AGENT] == (Address("127.0.0.1", 7),)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_an_advertised_host_that_means_any_becomes_the_primary_one(host: str) -> None:
    found = addresses.resolve_endpoints(BIND, {Service.AGENT: (Address(host, 1), Address("b", 2))}, primary=primary)
    assert found.advertise[Service.AGENT] == (Address("10.9.9.9", 1), Address("b", 2))


def test_a_port_offset_moves_a_process_and_never_a_list() -> None:
    advertise = {
        Service.REGISTRATION: (Address("a", 8992), Address("a", 9092)),
        Service.AGENT: (Address("a", 8994),),
    }
    found = addresses.resolve_endpoints(BIND, advertise, primary=primary, port_offset=100)
    assert [a.port for a in found.bind.values()] == [9090, 9091, 9092, 9093, 9094]
    assert found.advertise[Service.REGISTRATION] == advertise[Service.REGISTRATION]
    assert found.advertise[Service.AGENT] == (Address("a", 9094),)
    assert found.advertise[Service.OPERATOR] == (Address("10.9.9.9", 9093),)


@pytest.mark.parametrize("offset", [60_000, -9000])
def test_an_offset_out_of_range_is_refused(offset: int) -> None:
    with pytest.raises(ValueError, match="after shifting"):
        addresses.resolve_endpoints(BIND, {}, primary=primary, port_offset=offset)


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("a:1", "a:1", True),
        ("a:1", "b:1", False),
        ("a:1", "a:2", False),
        (":1", "a:1", True),
        ("0.0.0.0:1", "[::1]:1", True),
    ],
)
def test_clashes(one: str, other: str, clash: bool) -> None:
    assert addresses.parse(one).clashes(addresses.parse(other)) == clash
