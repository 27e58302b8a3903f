"""Durations of a configuration: `300ms`, `1h30m`, `7d`, `0`. The spelling is everybody's, but here none is negative."""

from nstance.model import durations

LONGEST = 36_500 * 86_400.0  # a hundred years: beyond it arithmetic with dates ends


def parse(text: str) -> float:
    """Seconds. Raises ValueError with a sentence that says what was expected."""
    if text.startswith(("+", "-")):
        raise ValueError("expected a duration without a sign")
    try:
        seconds = durations.parse(text)
    except ValueError:
        raise ValueError('expected a duration such as "300ms", "1h30m" or "7d"') from None
    if seconds > LONGEST:
        raise ValueError("expected a duration of at most a hundred years")
    return seconds


def format(seconds: float) -> str:
    """The shortest spelling that reads back as the same number of milliseconds."""
    return durations.format(seconds)
