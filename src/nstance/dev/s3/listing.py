"""One page of a listing: which keys, which common prefixes, and where the next page goes on. Pure."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nstance.dev.s3.errors import invalid

LARGEST_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a listing goes on: after a key, or after everything that starts with a common prefix."""

    text: str
    whole_prefix: bool = False

    def passed(self, key: str) -> bool:
        return key <= self.text or (self.whole_prefix and key.startswith(self.text))

    def token(self) -> str:
        return base64.urlsafe_b64encode((("p" if self.whole_prefix else "k") + self.text).encode()).decode()


@dataclass(frozen=True, slots=True)
class Page:
    keys: list[str]
    prefixes: list[str]
    next: Place | None


def from_token(token: str) -> Place:
    try:
        text = base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("the continuation token is not one of ours") from None
    if text[:1] not in ("k", "p"):
        raise invalid("the continuation token is not one of ours")
    return Place(text[1:], text[0] == "p")


def number(name: str, query: Mapping[str, str], default: int) -> int:
    """A number in the query; of a page's size, LARGEST_PAGE at most."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise invalid(f"{name} must be a number of 0 or more, not {text[:40]!r}")
    return min(int(text), LARGEST_PAGE) if name.startswith("max-") else int(text)


def page(keys: Iterable[str], *, prefix: str, delimiter: str, after: Place, size: int) -> Page:
    """`keys` are sorted and start with the prefix."""
    found: list[str] = []
    prefixes: list[str] = []
    last = after
    if size == 0:
        return Page(found, prefixes, None)
    for key in keys:
        if last.passed(key) or after.passed(key):
            continue
        if len(found) + len(prefixes) == size:
            return Page(found, prefixes, last)
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            found.append(key)
            last = Place(key)
        else:
            prefixes.append(key[: end + len(delimiter)])
            last = Place(prefixes[-1], whole_prefix=True)
    return Page(found, prefixes, None)
