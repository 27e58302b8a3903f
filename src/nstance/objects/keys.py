"""Which keys exist in every store.

S3 takes nearly anything as a key, a file system does not; a config that works on one store must work on the others. So
one rule holds for all: segments joined by single slashes, none of them `.` or `..`, printable, at most 1,024 bytes.
"""

from nstance.objects import errors, port


def check(key: str) -> None:
    """Raises Denied for a key that not every store could hold."""
    problem = _problem(key)
    if problem is not None:
        raise errors.PermissionDeniedError(
            f"key {key[:80]!r} {problem}; use segments of printable characters joined by single slashes"
        )


def possible(key: str) -> bool:
    return _problem(key) is None


def _problem(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > port.MAX_KEY:
        return f"has {size} bytes, more than the {port.MAX_KEY} that are allowed"
    for segment in key.split("/"):
        if segment == "":
            return "is empty or has an empty segment"
        if segment in (".", ".."):
            return f"has a segment {segment!r}"
    if not key.replace(" ", "x").isprintable():
        return "has a control or other unprintable character"
    return None
