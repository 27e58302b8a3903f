"""When the agent does what: pure functions.

Every wait is random within its bounds, because all agents of a shard lose the same server in the same millisecond.
"""

from nstance.clock import Rng
from nstance.tasks.backoff import Backoff

BACKOFF = Backoff(0.5, 30.0, jitter=1.0)
MAX_RECONNECT_SECONDS = 5.0  # a server gives its agents at least ten seconds to return before it concludes anything
MAX_SPOT_RETRY_SECONDS = 5.0  # the shortest warning that a cloud gives is 30 seconds
MAX_SPREAD_SECONDS = 300.0
REPORT_JITTER = 0.1
RENEW_AT = 2 / 3
MIN_INTERVAL_SECONDS = 0.1
MAX_INTERVAL_SECONDS = 86400.0


def reconnect_delay(failures: int, spread: float, rng: Rng) -> float:
    """The wait before the next connection; `spread` is what the server last asked for."""
    if failures == 0:
        return rng.uniform(0.0, min(max(spread, 0.0), MAX_SPREAD_SECONDS))
    longest = max(MAX_RECONNECT_SECONDS, min(spread, MAX_SPREAD_SECONDS))
    return min(BACKOFF.delay(failures, rng), rng.uniform(0.0, longest))


def spot_retry_delay(failures: int, rng: Rng, *, known_spot: bool) -> float:
    """A machine that may be reclaimed at any moment asks again soon."""
    delay = BACKOFF.delay(failures, rng)
    return min(delay, rng.uniform(0.0, MAX_SPOT_RETRY_SECONDS)) if known_spot else delay


def until_report(interval: float, rng: Rng) -> float | None:
    """None: no periodic reports."""
    return interval * rng.uniform(1 - REPORT_JITTER, 1 + REPORT_JITTER) if interval > 0 else None


def report_interval(configured: float, requested: float) -> float:
    """The interval that the server requests wins, unless periodic reports are switched off on this machine."""
    if configured == 0 or requested <= 0:
        return configured
    return min(max(requested, MIN_INTERVAL_SECONDS), MAX_INTERVAL_SECONDS)


def renewal_due(not_before: float, not_after: float) -> float:
    return not_before + (not_after - not_before) * RENEW_AT
