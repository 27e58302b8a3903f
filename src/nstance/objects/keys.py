"""Keys that are valid in every store.

S3 accepts nearly any key, a file system does not; a configuration that works with one store must work with the others. So
one rule holds for all: segments joined by single slashes, none of them `.` or `..`, printable, at most 1,024 bytes.
"""

from nstance.objects import errors, port


def check(key: str) -> None:
    """Raises PermissionDeniedError for a key that is not valid in every store."""
    problem = _problem(key)
    if problem is not None:
        raise errors.PermissionDeniedError(
            f"key {key[:80]!r} {problem}; use segments of printable characters joined by single slashes"
        )


def is_valid(key: str) -> bool:
    return _problem(key) is None


def _problem(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > port.MAX_KEY:
        return f"has {size} bytes, more than {port.MAX_KEY}"
    for segment in key.split("/"):
        if segment == "":
            return "is empty or has an empty segment"
        if segment in (".", ".."):
            return f"has a segment {segment!r}"
    if not key.replace(" ", "x").isprintable():
        return "has a control or other unprintable character"
    return None
