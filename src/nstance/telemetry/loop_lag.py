"""Event loop lag.

A task sleeps for a moment and measures how late it wakes: all heartbeats and agents waited as long. The metric is the
maximum of the last minute, because a scrape every 15 seconds would miss a stall of one second.
"""

from collections import deque
from collections.abc import Callable

from nstance.clock import Clock

INTERVAL_SECONDS = 0.25
WINDOW_SECONDS = 60.0


async def measure(clock: Clock, report: Callable[[float], None]) -> None:
    """Until cancelled. `report` is `Metrics.loop_lag`."""
    lags: deque[tuple[float, float]] = deque()  # (when, lag), lags decreasing: the first is the maximum
    before = clock.monotonic()
    while True:
        await clock.sleep(INTERVAL_SECONDS)
        now = clock.monotonic()
        lag = max(0.0, now - before - INTERVAL_SECONDS)
        before = now
        while lags and lags[-1][1] <= lag:
            lags.pop()
        lags.append((now, lag))
        while lags[0][0] <= now - WINDOW_SECONDS:
            lags.popleft()
        report(lags[0][1])
