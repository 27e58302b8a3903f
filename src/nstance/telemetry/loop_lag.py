"""How late the event loop is.

A task sleeps for a moment and compares: whatever it overslept, every heartbeat and every agent waited as well. The
metric holds the worst of the last minute, because a scrape every 15 seconds would miss a stall of one.
"""

from collections import deque
from collections.abc import Callable

from nstance.clock import Clock

INTERVAL = 0.25  # seconds
WINDOW = 60.0


async def measure(clock: Clock, show: Callable[[float], None]) -> None:
    """Runs until it is cancelled. `show` is `Metrics.loop_lag`."""
    lags: deque[tuple[float, float]] = deque()  # when, how much; falling, so that the first is the worst
    before = clock.monotonic()
    while True:
        await clock.sleep(INTERVAL)
        now = clock.monotonic()
        lag = max(0.0, now - before - INTERVAL)
        before = now
        while lags and lags[-1][1] <= lag:
            lags.pop()
        lags.append((now, lag))
        while lags[0][0] <= now - WINDOW:
            lags.popleft()
        show(lags[0][1])
