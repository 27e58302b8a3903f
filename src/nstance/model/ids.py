"""Identifiers and their format.

An instance ID is its kind and a UUIDv7 in lower-case Crockford base32, so that IDs sort by age. Two IDs made within one
millisecond must still sort in the order they were made, so the maker increments instead of drawing a new random number.
"""

import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple, NewType

ClusterId = NewType("ClusterId", str)
ShardId = NewType("ShardId", str)
TenantId = NewType("TenantId", str)
GroupName = NewType("GroupName", str)
ServerId = NewType("ServerId", str)
InstanceId = NewType("InstanceId", str)
OperatorId = NewType("OperatorId", str)
ProviderId = NewType("ProviderId", str)
Kind = NewType("Kind", str)

DEFAULT_TENANT = TenantId("default")
OPERATOR_KIND = Kind("opr")
MAX_NAME = 32

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_KIND = re.compile(r"[a-z]{3}")
_INSTANCE = re.compile(r"[a-z]{3}-[0-7][0-9a-hjkmnp-tv-z]{25}")


class GroupKey(NamedTuple):
    """Group names are unique only within a tenant: never look up a group by its name alone."""

    tenant: TenantId
    name: GroupName

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


def is_name(text: str) -> bool:
    """Whether a text is a valid name of a cluster, shard, tenant, group, subnet pool or server."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None and "--" not in text


def is_kind(text: str) -> bool:
    return _KIND.fullmatch(text) is not None


def is_instance_id(text: str) -> bool:
    return _INSTANCE.fullmatch(text) is not None


def kind_of(instance: InstanceId) -> Kind:
    return Kind(instance[:3])


def instance_id(kind: Kind, uuid: int) -> InstanceId:
    """The ID for a kind and a 128-bit UUID."""
    digits = []
    for _ in range(26):
        digits.append(_ALPHABET[uuid & 31])
        uuid >>= 5
    return InstanceId(f"{kind}-{''.join(reversed(digits))}")


def uuid_of(instance: InstanceId) -> int:
    value = 0
    for letter in instance[4:]:
        value = value << 5 | _VALUES[letter]
    return value


def created_at(instance: InstanceId) -> float:
    """When the ID was made, in seconds since 1970."""
    return (uuid_of(instance) >> 80) / 1000


def uuid7(milliseconds: int, tail: int) -> int:
    """A UUIDv7 from its time and the 74 bits that follow it (version and variant are set here)."""
    return (
        (milliseconds & (1 << 48) - 1) << 80
        | 0x7 << 76
        | (tail >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | tail & (1 << 62) - 1
    )


def requested_uuid(tenant: TenantId, chosen: int) -> int:
    """The UUID of the instance that a tenant requests with a UUID of its choice. The time is kept. The rest follows from
    both by a one-way function: no tenant can choose an ID that another one uses, or find out that it is used."""
    digest = hashlib.sha256(f"{tenant}\n{chosen:032x}".encode()).digest()
    return uuid7(chosen >> 80, int.from_bytes(digest[:10], "big"))


def is_uuid7(value: int) -> bool:
    return 0 <= value < 1 << 128 and value >> 76 & 0xF == 7 and value >> 62 & 0b11 == 0b10


class IdMaker:
    """Makes instance IDs that sort in creation order, also within one millisecond and across clock steps."""

    def __init__(self, *, wall: Callable[[], float], bits: Callable[[int], int]) -> None:
        self._wall = wall
        self._bits = bits
        self._last = (0, 0)

    def make(self, kind: Kind) -> InstanceId:
        now = int(self._wall() * 1000)
        milliseconds, tail = self._last
        if now > milliseconds:
            # The top bit stays clear to leave room for increments within a millisecond.
            milliseconds, tail = now, self._bits(73)
        else:
            tail += 1 + self._bits(32)
        self._last = (milliseconds, tail)
        return instance_id(kind, uuid7(milliseconds, tail))
