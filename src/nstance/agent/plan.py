"""When the agent does what: pure, so that tests need no clock and no dice.

Every wait is random within its bounds, because a thousand agents lose the same server in the same millisecond.
"""

from nstance.clock import Rng

FIRST_BACKOFF = 0.5
LAST_BACKOFF = 30.0
LAST_RECONNECT = 5.0  # a server gives its agents ten seconds and more to come back before it concludes anything
LAST_SPOT_BACKOFF = 5.0  # the shortest warning that a cloud gives is 30 seconds
LONGEST_SPREAD = 300.0
JITTER = 0.1
RENEW_AT = 2 / 3
SHORTEST_INTERVAL = 0.1
LONGEST_INTERVAL = 86400.0


def backoff(failures: int, rng: Rng) -> float:
    """Full jitter: after the n-th failure in a row anything between nothing and twice the last bound."""
    return rng.uniform(0.0, min(LAST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures - 1, 16)))


def reconnect(failures: int, spread: float, rng: Rng) -> float:
    """How long to wait before the next connection; `spread` is what the server last asked for."""
    if failures == 0:
        return rng.uniform(0.0, min(max(spread, 0.0), LONGEST_SPREAD))
    return min(backoff(failures, rng), rng.uniform(0.0, max(LAST_RECONNECT, min(spread, LONGEST_SPREAD))))


def spot_retry(failures: int, rng: Rng, *, known_spot: bool) -> float:
    """A machine that may be taken away any moment does not look away for long."""
    wait = backoff(failures, rng)
    return min(wait, rng.uniform(0.0, LAST_SPOT_BACKOFF)) if known_spot else wait


def until_report(interval: float, rng: Rng) -> float | None:
    """None: no periodic reports."""
    return interval * rng.uniform(1 - JITTER, 1 + JITTER) if interval > 0 else None


def interval(own: float, served: float) -> float:
    """The server's wish wins, but an agent told to be quiet stays quiet."""
    if own == 0 or served <= 0:
        return own
    return min(max(served, SHORTEST_INTERVAL), LONGEST_INTERVAL)


def renewal_due(not_before: float, not_after: float) -> float:
    return not_before + (not_after - not_before) * RENEW_AT
