"""One page of a listing: keys, common prefixes and the start of the next page. Pure functions."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nstance.dev.s3.errors import invalid

MAX_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Position:
    """Where a listing continues: after a key, or after all keys with a common prefix."""

    text: str
    is_prefix: bool = False

    def is_past(self, key: str) -> bool:
        return key <= self.text or (self.is_prefix and key.startswith(self.text))

    def token(self) -> str:
        return base64.urlsafe_b64encode((("p" if self.is_prefix else "k") + self.text).encode()).decode()


@dataclass(frozen=True, slots=True)
class Page:
    keys: list[str]
    prefixes: list[str]
    next: Position | None


def from_token(token: str) -> Position:
    try:
        text = base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("the continuation token is not valid") from None
    if text[:1] not in ("k", "p"):
        raise invalid("the continuation token is not valid")
    return Position(text[1:], text[0] == "p")


def parse_page_size(query: Mapping[str, str]) -> int:
    text = query.get("max-keys", str(MAX_PAGE_SIZE))
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise invalid(f"max-keys must be a number of 0 or more, found {text[:40]!r}")
    return min(int(text), MAX_PAGE_SIZE)


def page(keys: Iterable[str], *, prefix: str, delimiter: str, after: Position, size: int) -> Page:
    """`keys` are sorted and start with the prefix."""
    found: list[str] = []
    prefixes: list[str] = []
    last = after
    if size == 0:
        return Page(found, prefixes, None)
    for key in keys:
        if last.is_past(key) or after.is_past(key):
            continue
        if len(found) + len(prefixes) == size:
            return Page(found, prefixes, last)
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            found.append(key)
            last = Position(key)
        else:
            prefixes.append(key[: end + len(delimiter)])
            last = Position(prefixes[-1], is_prefix=True)
    return Page(found, prefixes, None)
