"""Checks that a received file is what its name says, before it is installed.

A truncated certificate or a JSON file with a missing brace must not replace one that works. Files without a known
extension are accepted unchecked. Messages never show content, which may be secret.
"""

import base64
import binascii
import json
import re
import ssl
from collections.abc import Callable
from typing import Any

from nstance.agent.credentials import certificates
from nstance.agent.credentials.certificates import MalformedError

# It matches with or without the closing quote, so that no text is scanned twice. The atomic group drops its backtracking
# positions, which keeps memory small; possessive quantifiers match wrongly before Python 3.11.5.
_JSONC_STRING = r'"[^"\\\n]*(?>(?:\\.[^"\\\n]*){1,200})*"?'
_JSONC_TOKENS = re.compile(rf"{_JSONC_STRING}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_JSONC_COMMAS = re.compile(rf"{_JSONC_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# As systemd reads a value: plain characters, escapes, and quotes that may span lines.
_ENV_VALUE = re.compile(r"""(?:[^\n"'\\]|\\(?:.|\n)|"(?:[^"\\]|\\(?:.|\n))*"|'[^']*')*""")
_ENV_SKIP = re.compile(r"[ \t]*(?:[#;][^\n]*)?")


class InvalidContentError(Exception):
    """The content is not what the name says."""


def check(name: str, content: bytes) -> None:
    """Raises InvalidContentError."""
    check_content = _CHECKS.get(name.rpartition(".")[2]) if "." in name else None
    if check_content is not None:
        check_content(content)


def _certificates(content: bytes) -> None:
    """Parsed by OpenSSL, which accepts any kind of key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
        certificates.pem_blocks(content)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidContentError("expected PEM certificates, found something else or a damaged one") from error


def _public_key(content: bytes) -> None:
    try:
        if content.startswith((b"ssh-", b"ecdsa-", b"sk-")):
            _ssh_public_key(content)
        else:
            _key(content, ("PUBLIC KEY", "RSA PUBLIC KEY"))
    except ValueError as error:
        raise InvalidContentError("expected a public key in PEM or OpenSSH form") from error


def _private_key(content: bytes) -> None:
    try:
        _key(
            content,
            ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY"),
        )
    except ValueError as error:
        raise InvalidContentError("expected a private key in PEM or OpenSSH form") from error


def _key(content: bytes, labels: tuple[str, ...]) -> None:
    """Checks the structure to the last byte, so that a truncated or damaged key is found. Whether it fits a certificate is
    up to the program that uses both."""
    keys = [(label, body) for label, body in certificates.pem_blocks(content) if label != "EC PARAMETERS"]
    if len(keys) != 1 or keys[0][0] not in labels:
        raise MalformedError("not one key")
    label, body = keys[0]
    if label.startswith("OPENSSH"):
        if not body.startswith(b"openssh-key-v1\0"):
            raise MalformedError("not an OpenSSH key")
    elif b"Proc-Type: 4,ENCRYPTED" not in content and not list(certificates.values(certificates.only(body))):
        raise MalformedError("empty")


def _ssh_public_key(content: bytes) -> None:
    words = content.split()
    try:
        body = base64.b64decode(words[1], validate=True)
    except (IndexError, binascii.Error) as error:
        raise MalformedError("not base64") from error
    parts, position = [], 0
    while position < len(body):
        size = int.from_bytes(body[position : position + 4], "big")
        parts.append(body[position + 4 : position + 4 + size])
        position += 4 + size
    if position != len(body) or len(parts) < 2 or parts[0] != words[0]:
        raise MalformedError("truncated, or of another kind than declared")


def _json(content: bytes) -> None:
    _parse_json(_text(content))


def _jsonc(content: bytes) -> None:
    def blank(token: re.Match[str]) -> str:
        if token[0].startswith("/*") and not token[0].endswith("*/", 2):
            raise InvalidContentError("expected JSON: a comment that is not closed")
        return token[0] if token[0].startswith('"') else re.sub(r"[^\n]", " ", token[0])

    _parse_json(_JSONC_COMMAS.sub(blank, _JSONC_TOKENS.sub(blank, _text(content))))


def _parse_json(text: str) -> None:
    try:
        json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidContentError(f"expected JSON: {error.msg} at line {error.lineno} column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise InvalidContentError("expected JSON of reasonable depth and with plain numbers") from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _env(content: bytes) -> None:
    text, position = _text(content), 0
    while position < len(text):
        skipped = _ENV_SKIP.match(text, position)
        assert skipped is not None
        position = skipped.end()
        if not text.startswith("\n", position) and position < len(text):
            key = _ENV_KEY.match(text, position)
            value = _ENV_VALUE.match(text, key.end()) if key is not None else None
            if value is None or not (value.end() == len(text) or text.startswith("\n", value.end())):
                line = text.count("\n", 0, position) + 1
                raise InvalidContentError(f"expected KEY=value with closed quotes at line {line}")
            position = value.end()
        position += 1


def _text(content: bytes) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidContentError(f"expected UTF-8 text, found another byte at {error.start}") from error
    if "\0" in text:
        raise InvalidContentError("expected text, found a NUL byte")
    return text


_CHECKS: dict[str, Callable[[bytes], None]] = {
    "crt": _certificates,
    "pub": _public_key,
    "key": _private_key,
    "json": _json,
    "jsonc": _jsonc,
    "env": _env,
}
