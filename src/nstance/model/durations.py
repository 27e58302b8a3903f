"""Durations in Go's format (`300ms`, `1h30m`, `1.5s`) plus `d` for days; a bare `0` is zero.

A number without a unit is rejected, because it could mean seconds or milliseconds.
"""

import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"([0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(ns|us|µs|μs|ms|s|m|h|d)"
_PARTS = re.compile(_PART)
_DURATION = re.compile(rf"([+-]?)((?:{_PART})+)")


def parse(text: str) -> float:
    """The duration in seconds. Raises ValueError with a message for users."""
    if text in ("0", "+0", "-0"):
        return 0.0
    match = _DURATION.fullmatch(text) if len(text) <= 128 else None
    if match is None:
        raise ValueError(f"expected a duration such as 300ms, 60s or 1h30m, found {text[:64]!r}")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PARTS.findall(match[2]))
    return -seconds if match[1] == "-" else seconds


def format(seconds: float) -> str:
    """The shortest text that `parse` reads back to the same millisecond."""
    milliseconds = round(abs(seconds) * 1000)
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if seconds < 0 and parts else "") + ("".join(parts) or "0")
