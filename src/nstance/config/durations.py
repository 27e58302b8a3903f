"""Durations in a configuration: `300ms`, `1h30m`, `7d`, `0`. As `model.durations`, but never negative."""

from nstance.model import durations

MAX_SECONDS = 36_500 * 86_400.0  # 100 years: date arithmetic fails beyond it


def parse(text: str) -> float:
    """Seconds. Raises ValueError that says what was expected."""
    if text.startswith(("+", "-")):
        raise ValueError("expected a duration without a sign")
    try:
        seconds = durations.parse(text)
    except ValueError:
        raise ValueError('expected a duration such as "300ms", "1h30m" or "7d"') from None
    if seconds > MAX_SECONDS:
        raise ValueError("expected a duration of at most 100 years")
    return seconds


def format(seconds: float) -> str:
    """The shortest spelling that reads back as the same number of milliseconds."""
    return durations.format(seconds)
