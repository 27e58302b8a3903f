"""Decodes protobuf bodies into JSON objects.

kubectl always sends some requests as protobuf (`create secret`, `create token`, an eviction). Responses are always JSON. The
trap: an unknown field is rejected, never dropped, or an object would silently lose data.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from nstance.kube.port import Object

MAGIC = b"k8s\x00"

# The messages: the numbers, names and types of their fields. A type is the name of a message, `int`, `bool`, `bytes`, `{}`
# (a map of strings) or `{bytes}`; the default is a string. `*` before it: a list. `-`: ignored (the server writes the
# status). `!` after it: sent only if it is set, so zero and empty are values; all others are always sent and are dropped if
# empty.
FIELDS = {
    "ObjectMeta": (
        "1 name, 2 generateName, 3 namespace, 4 selfLink -, 5 uid, 6 resourceVersion, 7 generation int, "
        "8 creationTimestamp Time, 9 deletionTimestamp Time, 10 deletionGracePeriodSeconds int, 11 labels {}, "
        "12 annotations {}, 13 ownerReferences *OwnerReference, 14 finalizers *, 17 managedFields -"
    ),
    "OwnerReference": "1 kind, 3 name, 4 uid, 5 apiVersion, 6 controller bool!, 7 blockOwnerDeletion bool!",
    "LocalObjectReference": "1 name",
    "ObjectReference": "1 kind, 2 namespace, 3 name, 4 uid, 5 apiVersion, 6 resourceVersion, 7 fieldPath",
    # options and subresources
    "DeleteOptions": (
        "1 gracePeriodSeconds int!, 2 preconditions Preconditions, 3 orphanDependents bool!, 4 propagationPolicy, 5 dryRun *, "
        "6 ignoreStoreReadErrorWithClusterBreakingPotential -"
    ),
    "Preconditions": "1 uid, 2 resourceVersion",
    "Eviction": "1 metadata ObjectMeta, 2 deleteOptions DeleteOptions",
    "TokenRequest": "1 metadata ObjectMeta, 2 spec TokenRequestSpec, 3 status -",
    "TokenRequestSpec": "1 audiences *, 3 boundObjectRef BoundObjectReference, 4 expirationSeconds int!",
    "BoundObjectReference": "1 kind, 2 apiVersion, 3 name, 4 uid",
    # core
    "Namespace": "1 metadata ObjectMeta, 2 spec NamespaceSpec, 3 status -",
    "NamespaceSpec": "1 finalizers *",
    "Secret": "1 metadata ObjectMeta, 2 data {bytes}, 3 type, 4 stringData {}, 5 immutable bool!",
    "ConfigMap": "1 metadata ObjectMeta, 2 data {}, 3 binaryData {bytes}, 4 immutable bool!",
    "ServiceAccount": (
        "1 metadata ObjectMeta, 2 secrets *ObjectReference, 3 imagePullSecrets *LocalObjectReference, "
        "4 automountServiceAccountToken bool!"
    ),
}


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
    if kind not in FIELDS:
        raise ProtobufError(f"objects of kind {kind!r} are supported as JSON or YAML only")
    return {"apiVersion": api_version, "kind": kind, **_message(kind, _bytes(envelope.get(2, b"")))}


@cache
def _table(message: str) -> dict[int, Field]:
    table = {}
    for entry in FIELDS[message].split(", "):
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
    if type == "Time":
        return _time(dict(_fields(raw)).get(1))
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
