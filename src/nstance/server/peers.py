"""What leader and standbys say to each other, and the door they say it through.

A link is one authenticated connection between two servers of a shard. The leader sends heartbeats, a standby answers
with promises. Heartbeats count only from the key and epoch that the lease names, so a link knows its peer's key.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol

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
    sequence: int
    version: str  # of the lease, as the leader last wrote it
    tail: int  # of the journal
    number: int  # of this heartbeat
    member: bool  # whether the lease names the receiver
    at: float = 0.0  # the shard's time


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


class BadMessage(ValueError):
    """Not something a peer of this version says."""


class LinkClosed(Exception):
    """The link is gone."""


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
        """The next message. Raises LinkClosed."""
        ...

    def close(self) -> None: ...


class Dialer(Protocol):
    async def dial(self, addresses: tuple[str, ...], fingerprint: str) -> Link:
        """A link to the server at one of the addresses that holds that key. Raises LinkClosed."""
        ...


def encode(message: Message) -> bytes:
    return canonical({"kind": type(message).__name__.lower(), **asdict(message)})


def decode(body: bytes | str) -> Message:
    try:
        raw: dict[str, Any] = json.loads(body)
        if not isinstance(raw, dict):
            raise BadMessage("expected an object")
        canonical(raw)  # a name that cannot be written (half a character) would stop whoever puts it into the lease
        kind = _KINDS[raw.pop("kind")]
        if kind is Join:
            raw["addresses"] = tuple(str(a) for a in raw["addresses"])
        message = kind(**raw)
        for name, value in raw.items():
            expected = type(getattr(_SAMPLES[kind], name))
            if type(value) is not expected:
                raise BadMessage(f"{name} is {type(value).__name__}, expected {expected.__name__}")
        return message
    except (KeyError, TypeError, ValueError, RecursionError) as problem:
        raise BadMessage(f"a peer said something unknown: {problem!r}") from problem


_SAMPLES: dict[type[Message], Message] = {
    Join: Join("", "", (), ""),
    Heartbeat: Heartbeat(0, 0, "", 0, 0, False),
    Promise: Promise(0, 0),
    Refusal: Refusal(0),
    Released: Released(0, ""),
}
