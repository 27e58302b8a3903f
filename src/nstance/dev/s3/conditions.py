"""Conditions and ranges of requests. Pure functions."""

import email.utils
import re
from collections.abc import Mapping

from nstance.dev.s3.errors import S3Error, invalid
from nstance.objects.port import Head

SOURCE = "x-amz-copy-source-"  # prefix of the conditions for a copy source

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


def is_unchanged(head: Head, headers: Mapping[str, str], *, prefix: str = "") -> bool:
    """Whether the client has this version already. Raises S3Error if a precondition fails."""
    match, none_match = headers.get(f"{prefix}if-match"), headers.get(f"{prefix}if-none-match")
    after, before = _date(headers.get(f"{prefix}if-modified-since")), _date(headers.get(f"{prefix}if-unmodified-since"))
    modified = int(head.modified)  # a date in a header has no fraction
    if match is not None:  # an ETag takes precedence over a date
        if match != "*" and head.version not in _etags(match):
            raise S3Error(412, "PreconditionFailed", "the object has a different ETag")
    elif before is not None and modified > before:
        raise S3Error(412, "PreconditionFailed", "the object was modified since")
    if none_match is not None:
        return none_match == "*" or head.version in _etags(none_match)
    return after is not None and modified <= after


def check_copy_source(head: Head, headers: Mapping[str, str]) -> None:
    """Raises S3Error unless the conditions for the source hold."""
    if is_unchanged(head, headers, prefix=SOURCE):
        raise S3Error(412, "PreconditionFailed", "the source has not changed")


def parse_range(header: str | None, size: int) -> tuple[int, int]:
    """Start and end (exclusive). An invalid range is ignored, as HTTP requires."""
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


def parse_copy_range(header: str | None, size: int) -> tuple[int, int]:
    """The range of a copied part, which must be within the object."""
    if header is None:
        return 0, size
    match = _RANGE.fullmatch(header.strip())
    if match is None or not match[1] or not match[2] or not int(match[1]) <= int(match[2]) < size:
        raise invalid(f"expected x-amz-copy-source-range: bytes=FIRST-LAST within {size} bytes, found {header[:60]!r}")
    return int(match[1]), int(match[2]) + 1


def unquote_etag(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def _etags(header: str) -> list[str]:
    return [unquote_etag(part) for part in header.split(",")]


def _date(header: str | None) -> float | None:
    """An invalid date is ignored, as HTTP requires."""
    if header is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(header).timestamp()
    except (ValueError, OverflowError):
        return None
