"""Does the client want this object, and which bytes of it? Pure."""

import email.utils
import re
from collections.abc import Mapping

from nstance.dev.s3.errors import S3Error, invalid
from nstance.objects.port import Head

SOURCE = "x-amz-copy-source-"  # the same conditions, of the object that is copied

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


def unchanged(head: Head, headers: Mapping[str, str], *, prefix: str = "") -> bool:
    """Whether the client has this object already. Raises S3Error when it asked for another."""
    match, none_match = headers.get(f"{prefix}if-match"), headers.get(f"{prefix}if-none-match")
    after, before = _date(headers.get(f"{prefix}if-modified-since")), _date(headers.get(f"{prefix}if-unmodified-since"))
    modified = int(head.modified)  # a date in a header has no fraction
    if match is not None:  # an ETag says more than a date: with one, the date is not looked at
        if match != "*" and head.version not in _etags(match):
            raise S3Error(412, "PreconditionFailed", "the object has another ETag")
    elif before is not None and modified > before:
        raise S3Error(412, "PreconditionFailed", "the object was modified since")
    if none_match is not None:
        return none_match == "*" or head.version in _etags(none_match)
    return after is not None and modified <= after


def copied(head: Head, headers: Mapping[str, str]) -> None:
    """Raises S3Error unless the source's conditions hold."""
    if unchanged(head, headers, prefix=SOURCE):
        raise S3Error(412, "PreconditionFailed", "the source has not changed")


def span(header: str | None, size: int) -> tuple[int, int]:
    """From and to (exclusive). What cannot be read is no range, as HTTP says."""
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match[1] == match[2] == "":
        return 0, size
    if match[1] == "":
        first, last = max(0, size - int(match[2])), size
    else:
        first, last = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < first:
            return 0, size
    if first >= last:
        raise S3Error(416, "InvalidRange", f"the object has {size} bytes, the range is {header}")
    return first, last


def copied_span(header: str | None, size: int) -> tuple[int, int]:
    """Of a part that is copied: here a range that is not exactly there is a mistake."""
    if header is None:
        return 0, size
    match = _RANGE.fullmatch(header.strip())
    if match is None or not match[1] or not match[2] or not int(match[1]) <= int(match[2]) < size:
        raise invalid(f"expected x-amz-copy-source-range: bytes=FIRST-LAST within {size} bytes, found {header[:60]!r}")
    return int(match[1]), int(match[2]) + 1


def unquoted(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def _etags(header: str) -> list[str]:
    return [unquoted(part) for part in header.split(",")]


def _date(header: str | None) -> float | None:
    """What cannot be read is no date, as HTTP says."""
    if header is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(header).timestamp()
    except (ValueError, OverflowError):
        return None
