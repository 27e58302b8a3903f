"""Decodes protobuf bodies into JSON objects.

kubectl always sends some requests as protobuf (`create secret`, `auth can-i`, an eviction). Responses are always JSON. The
trap: an unknown field is rejected, never dropped, or an object would silently lose data.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from nstance.dev.k8s import protobuf_fields
from nstance.kube.port import Object

MAGIC = b"k8s\x00"


class ProtobufError(Exception):
    """Why a body cannot be decoded."""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str
    repeated: bool
    optional: bool  # sent only if it is set


def decode(raw: bytes) -> Object:
    """The object in an envelope with its kind."""
    if not raw.startswith(MAGIC):
        raise ProtobufError("expected the prefix of Kubernetes protobuf")
    envelope = dict(_fields(raw[len(MAGIC) :]))
    kinds = dict(_fields(_bytes(envelope.get(1, b""))))
    api_version, kind = (_bytes(kinds.get(number, b"")).decode() for number in (1, 2))
    if kind not in protobuf_fields.FIELDS:
        raise ProtobufError(f"objects of kind {kind!r} are supported as JSON or YAML only")
    return {"apiVersion": api_version, "kind": kind, **_message(kind, _bytes(envelope.get(2, b"")))}


@cache
def _table(message: str) -> dict[int, Field]:
    table = {}
    for entry in protobuf_fields.FIELDS[message].split(", "):
        number, name, *rest = entry.split(" ")
        type = rest[0] if rest else ""
        table[int(number)] = Field(name, type.strip("*!"), type.startswith("*"), type.endswith("!"))
    return table


def _message(message: str, raw: bytes) -> Object:
    found: Object = {}
    for number, value in _fields(raw):
        field = _table(message).get(number)
        if field is None:
            raise ProtobufError(f"field {number} of {message} is not supported; send it as JSON or YAML")
        if field.type == "-":
            continue
        if field.type.startswith("{"):
            entry = dict(_fields(_bytes(value)))
            key = _bytes(entry.get(1, b"")).decode()
            found.setdefault(field.name, {})[key] = _value(field.type.strip("{}"), entry.get(2, b""))
        elif field.repeated:
            found.setdefault(field.name, []).append(_value(field.type, value))
        else:
            read = _value(field.type, value)
            if field.optional or read not in ("", 0, False, None, {}):
                found[field.name] = read
    return found


def _value(type: str, value: int | bytes) -> Any:
    if type == "int":
        return _number(value)
    if type == "bool":
        return bool(value)
    raw = _bytes(value)
    if type == "":
        return raw.decode()
    if type == "bytes":
        return base64.b64encode(raw).decode()
    if type == "Quantity":
        return _bytes(dict(_fields(raw)).get(1, b"")).decode()
    if type == "Time":
        return _time(dict(_fields(raw)).get(1))
    if type == "IntOrString":
        parts = dict(_fields(raw))
        return _bytes(parts.get(3, b"")).decode() if parts.get(1) else _number(parts.get(2, 0))
    return _message(type, raw)


def _time(seconds: int | bytes | None) -> str | None:
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(_number(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        raise ProtobufError("expected a time in the years 1 to 9999") from None


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ProtobufError("expected a number")
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ProtobufError("expected a string or message")
    return value


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = _varint(raw, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(raw, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ProtobufError(f"wire type {wire} is not supported")
        if position + size > len(raw):
            raise ProtobufError("unexpected end of the body")
        yield number, raw[position : position + size]
        position += size


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(raw):
            raise ProtobufError("unexpected end of the body")
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtobufError("a number is too long")
