import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from nstance.agent.files import content

KEY = Ed25519PrivateKey.generate()
PRIVATE = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
ENCRYPTED = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
)
OPENSSH = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
)
EC = ec.generate_private_key(ec.SECP256R1()).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
)
PUBLIC = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
SSH = KEY.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
_START = datetime(2026, 1, 1, tzinfo=UTC)
CERTIFICATE = (
    x509.CertificateBuilder(_NAME, _NAME, KEY.public_key(), 255, _START, _START + timedelta(days=1))
    .sign(KEY, None)
    .public_bytes(serialization.Encoding.PEM)
)


def name_only(value: str | bytes) -> str:
    """Keys are new in each process, and a test must have one name in all of them."""
    return value if isinstance(value, str) else "body"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.crt", CERTIFICATE),
        ("a.crt", CERTIFICATE + CERTIFICATE),
        ("a.pub", PUBLIC),
        ("a.pub", SSH),
        ("a.key", PRIVATE),
        ("a.key", ENCRYPTED),
        ("a.key", OPENSSH),
        ("a.key", EC),
        ("a.json", b'{"a": [1, 2.5, null, "x"]}'),
        ("a.jsonc", b'{// note\n "a": "// kept, /* too */", /* b */ "b": [1, 2,], /* c */ }'),
        ("a.jsonc", b'{"a": ",}", "b": "\\"//",}'),
        ("a.env", b'# c\n; c\n\nA=1\n  B="two words\\""\nC=\'x\'y\nD=\nE="two\nlines"'),
        ("a.env", b""),
        ("script.sh", b"\x00\xff anything"),
        ("json", b"{ no ending, no judgement"),
    ],
    ids=name_only,
)
def test_accepted(name: str, body: bytes) -> None:
    content.check(name, body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.crt", b""),
        ("a.crt", CERTIFICATE[:-40]),
        ("a.crt", CERTIFICATE.replace(b"A", b"B")),
        ("a.crt", PUBLIC),
        ("a.pub", PRIVATE),
        ("a.pub", b"ssh-ed25519 AAAA"),
        ("a.key", PUBLIC),
        ("a.key", PRIVATE[:60]),
        ("a.json", b""),
        ("a.json", b'{"a": 1,}'),
        ("a.json", b'{"a": NaN}'),
        ("a.json", b"[" * 100_000),
        ("a.json", b'"\xff"'),
        ("a.jsonc", b'{"a": 1 // lost brace\n'),
        ("a.jsonc", b"{/* never closed "),
        ("a.env", b"export A=1"),
        ("a.env", b"A"),
        ("a.env", b"1A=x"),
        ("a.env", b'A=1\nB="open'),
        ("a.env", b"A=\0"),
    ],
    ids=name_only,
)
def test_refused(name: str, body: bytes) -> None:
    with pytest.raises(content.InvalidContentError):
        content.check(name, body)


def test_the_place_is_named_and_the_content_is_not() -> None:
    with pytest.raises(content.InvalidContentError) as caught:
        content.check("a.env", b"# first\nA=1\nB='hunter2")
    assert "line 3" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@given(st.sampled_from(["crt", "pub", "key", "json", "jsonc", "env"]), st.binary(max_size=200))
def test_any_bytes_are_accepted_or_refused(ending: str, body: bytes) -> None:
    with contextlib.suppress(content.InvalidContentError):
        content.check(f"a.{ending}", body)


@given(st.sampled_from(["json", "jsonc", "env"]), st.text(alphabet="{}[]\",:/*\\ \n'=aA1#;", max_size=60))
def test_any_text_is_accepted_or_refused(ending: str, body: str) -> None:
    with contextlib.suppress(content.InvalidContentError):
        content.check(f"a.{ending}", body.encode())
