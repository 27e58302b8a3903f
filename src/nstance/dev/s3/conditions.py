"""Conditions and ranges of reads. Pure functions."""

import re
from collections.abc import Mapping

from nstance.dev.s3.errors import S3Error
from nstance.objects.port import Version

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


def is_unchanged(version: Version, headers: Mapping[str, str]) -> bool:
    """Whether the client has this version already. Raises S3Error if a precondition fails."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match not in (None, "*") and version not in _etags(match):
        raise S3Error(412, "PreconditionFailed", "the object has a different ETag")
    return none_match is not None and (none_match == "*" or version in _etags(none_match))


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


def unquote_etag(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def _etags(header: str) -> list[str]:
    return [unquote_etag(part) for part in header.split(",")]
