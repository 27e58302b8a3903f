"""Contexts: version 1.3, no tickets, and keys that leave no trace."""

import os
import ssl

import pytest

from component.wire_world import World
from nstance import key_pairs
from nstance.wire import tls

WORLD = World()
SERVER = WORLD.server()
AGENT = WORLD.agent()


def server(**given: object) -> ssl.SSLContext:
    whole = {
        "certificate_pem": SERVER.certificate_pem,
        "key_pem": SERVER.key_pem,
        "ca_pem": WORLD.ca.pem,
        **given,
    }
    return tls.server_context(**whole)  # type: ignore[arg-type]


def client(**given: object) -> ssl.SSLContext:
    whole = {
        "certificate_pem": AGENT.certificate_pem,
        "key_pem": AGENT.key_pem,
        "ca_pem": WORLD.ca.pem,
        **given,
    }
    return tls.client_context(**whole)  # type: ignore[arg-type]


@pytest.mark.parametrize("context", [server(), client(), client(certificate_pem=None, key_pem=None)])
def test_only_version_1_3(context: ssl.SSLContext) -> None:
    assert context.minimum_version is context.maximum_version is ssl.TLSVersion.TLSv1_3
    assert context.options & ssl.OP_NO_TICKET


def test_a_server_gives_no_tickets_and_asks_for_certificates_only_with_a_ca() -> None:
    assert server().num_tickets == 0
    assert server().verify_mode is ssl.CERT_REQUIRED
    assert server(ca_pem=None).verify_mode is ssl.CERT_NONE


def test_a_client_always_checks_the_chain() -> None:
    assert client().verify_mode is ssl.CERT_REQUIRED
    assert len(client().get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (server, {"key_pem": AGENT.key_pem}),
        (server, {"key_pem": b"rubbish"}),
        (server, {"certificate_pem": ""}),
        (server, {"ca_pem": ""}),
        (server, {"ca_pem": "rubbish"}),
        (client, {"key_pem": None}),
        (client, {"certificate_pem": None}),
        (client, {"ca_pem": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}),
    ],
)
def test_what_does_not_fit_is_one_clear_error(make: object, given: dict[str, object]) -> None:
    with pytest.raises(tls.TlsError) as caught:
        make(**given)  # type: ignore[operator]
    assert "PRIVATE KEY" not in str(caught.value)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password() -> None:
    from cryptography.hazmat.primitives import serialization

    from nstance.pki import keys

    encrypted = keys.private_key_from_pem(SERVER.key_pem).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    with pytest.raises(tls.TlsError, match="encrypted"):
        server(key_pem=encrypted)


def test_without_memory_files_the_key_is_in_a_private_file_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: "os.PathLike[str]"
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with key_pairs._private_file(b"secret") as path:
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.path.dirname(path) == str(tmp_path)
    assert server().verify_mode is ssl.CERT_REQUIRED
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory files here")
def test_where_possible_no_disk_sees_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **given: object) -> None:
        raise AssertionError("a file was made")

    monkeypatch.setattr("tempfile.mkstemp", forbidden)
    before = set(os.listdir("/proc/self/fd"))
    server()
    assert set(os.listdir("/proc/self/fd")) == before
