"""B30: what a URL in a configuration may not make a server read. Nothing here reaches a network."""

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from nstance.config import load
from nstance.config.errors import ConfigError
from nstance.server.workload import http_fetch
from nstance.server.workload.http_fetch import FetchError, fetch

NEVER = "never fetched from"
PRIVATE = "not public"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://169.254.169.254/latest/meta-data/", NEVER),
        ("http://[fe80::1]/", NEVER),
        ("http://[::ffff:169.254.169.254]/", NEVER),
        ("http://[64:ff9b::169.254.169.254]/", NEVER),
        ("http://[2002:a9fe:a9fe::]/", NEVER),
        ("http://0.0.0.0/", NEVER),
        ("http://[::]/", NEVER),
        ("http://224.0.0.1/", NEVER),
        ("http://127.0.0.1:8990/", PRIVATE),
        ("http://[::1]/", PRIVATE),
        ("http://[::ffff:127.0.0.1]/", PRIVATE),
        ("http://10.1.2.3/", PRIVATE),
        ("https://192.168.0.1/", PRIVATE),
        ("https://172.16.0.1/", PRIVATE),
        ("https://100.64.0.1/", PRIVATE),
        ("https://[fd00::1]/", PRIVATE),
        ("http://localhost:8990/", PRIVATE),
        ("http://127.1/", "not a proper address"),
        ("http://2130706433/", "not a proper address"),
        ("http://0x7f000001/", PRIVATE),
        ("file:///etc/passwd", "only http and https"),
        ("gopher://example.com/", "only http and https"),
        ("http:///path", "only http and https"),
        ("https://user:secret@example.com/", "a user or a password"),
    ],
)
async def test_b30_refused(url: str, why: str) -> None:
    with pytest.raises(FetchError, match=why) as refused:
        await fetch(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]"])
async def test_b30_no_configuration_opens_link_local_addresses(host: str) -> None:
    with pytest.raises(FetchError, match=NEVER):
        await fetch(f"http://{host}/", private=[host.strip("[]")])


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: Sequence[str]) -> list[str]:
    """Names resolve to these addresses, at each call to the next ones."""
    asked: list[str] = []
    rest = list(answers)

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        addresses = rest.pop(0) if len(rest) > 1 else rest[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    return asked


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["93.184.215.14", "10.0.0.1"], ["169.254.169.254"]])
async def test_b30_a_name_is_judged_by_all_that_it_resolves_to(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    asked = resolve_to(monkeypatch, addresses)
    with pytest.raises(FetchError, match=r"10\.0\.0\.1|169\.254"):
        await fetch("http://innocent.example/")
    assert asked == ["innocent.example"]


async def test_what_is_shown_of_a_url_holds_no_secret() -> None:
    assert http_fetch.shown("https://x.example/a.sh?X-Signature=abc#f") == "https://x.example/a.sh"
    assert "pw" not in http_fetch.shown("https://me:pw@x.example/a.sh")


def userdata_hosts(*hosts: str) -> tuple[str, ...]:
    told = {
        "cluster": {"id": "demo"},
        "shard": {"infra": {"provider": "memory"}, "userdata_hosts": hosts},
    }
    return load.load(json.dumps(told).encode(), source="test", shard=None).shard.userdata_hosts


def test_the_allow_list_has_hosts() -> None:
    assert userdata_hosts("Files.Internal", "10.0.0.1", "::1") == ("files.internal", "10.0.0.1", "::1")
    assert userdata_hosts() == ()


@pytest.mark.parametrize(
    "host", ["", "https://files.internal", "files.internal:80", "cafe:80", "a b", "*.internal", "x/y"]
)
def test_the_allow_list_has_nothing_else(host: str) -> None:
    with pytest.raises(ConfigError, match="expected a host name or an address"):
        userdata_hosts(host)
