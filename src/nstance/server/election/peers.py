"""The messages between leader and standbys, and the port that carries them.

A link is one authenticated connection between two servers of a shard. The leader sends heartbeats, a standby answers
with promises. Heartbeats count only from the key and epoch that the lease names, so a link knows its peer's key.
"""

import json
from dataclasses import dataclass, fields
from typing import Any, Protocol, get_origin, get_type_hints

from nstance.model.codec import canonical


@dataclass(frozen=True, slots=True)
class Join:
    """A standby asks to become a member."""

    server: str
    incarnation: str
    addresses: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    epoch: int
    sequence: int  # of the newest record that the receiver may claim; the leader may be writing it just now
    version: str  # of the lease, as the leader last wrote it
    tail: int  # of the journal
    number: int  # of this heartbeat
    member: bool  # the receiver may claim this version when its promise has run out
    at: float = 0.0  # the shard's time
    promise: float = 0.0  # how long an answer holds; 0: as the leader's lease says
    crash_wait: float = 0.0  # the same, for a receiver that finds the leader dead


@dataclass(frozen=True, slots=True)
class Promise:
    """Not to challenge this epoch for a while."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """I know a newer epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Released:
    """The lease is free: take it at once."""

    epoch: int
    version: str


Message = Join | Heartbeat | Promise | Refusal | Released

_KINDS: dict[str, type[Message]] = {c.__name__.lower(): c for c in (Join, Heartbeat, Promise, Refusal, Released)}
_TYPES = {
    kind: {name: get_origin(hint) or hint for name, hint in get_type_hints(kind).items()} for kind in _KINDS.values()
}


class BadMessageError(ValueError):
    """Not a message of this version."""


class LinkClosedError(Exception):
    """The link is gone."""


class PeerRefusedError(LinkClosedError):
    """The hosts at all of the peer's addresses refuse connections."""


class Link(Protocol):
    @property
    def fingerprint(self) -> str:
        """Of the peer's certificate key."""
        ...

    @property
    def server(self) -> str:
        """The peer's server ID, from its certificate."""
        ...

    def send(self, message: Message) -> None:
        """Never waits; a link that cannot keep up is closed."""
        ...

    async def receive(self) -> Message:
        """The next message. Raises LinkClosedError."""
        ...

    def close(self) -> None: ...


class Dialer(Protocol):
    async def dial(self, addresses: tuple[str, ...], fingerprint: str) -> Link:
        """A link to the server at one of the addresses that has this key. Raises LinkClosedError; PeerRefusedError if
        every address refuses the connection."""
        ...


def encode(message: Message) -> bytes:
    """Fields at their defaults are left out: servers that do not know the newest ones yet still understand the rest."""
    kind = type(message)
    values = {f.name: value for f in fields(kind) if (value := getattr(message, f.name)) != f.default}
    return canonical({"kind": kind.__name__.lower(), **values})


def decode(body: bytes | str) -> Message:
    try:
        raw: dict[str, Any] = json.loads(body)
        if not isinstance(raw, dict):
            raise BadMessageError("expected an object")
        canonical(raw)  # a name with half a character could not be written into the lease
        kind = _KINDS[raw.pop("kind")]
        if kind is Join:
            raw["addresses"] = tuple(str(a) for a in raw["addresses"])
        message = kind(**raw)
        for name, value in raw.items():
            expected = _TYPES[kind][name]
            if type(value) is not expected:
                raise BadMessageError(f"{name} is {type(value).__name__}, expected {expected.__name__}")
        return message
    except (KeyError, TypeError, ValueError, RecursionError) as problem:
        raise BadMessageError(f"unknown message of a peer: {problem!r}") from problem
