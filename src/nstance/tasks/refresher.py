"""Keeping a value fresh: reading it at an interval, and sooner after a failure."""

from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from nstance.tasks.backoff import Sleeper, retry

E = TypeVar("E", bound=Exception)


async def refresh_forever(
    refresh: Callable[[], Awaitable[object]],
    *,
    clock: Sleeper,
    interval: Callable[[], float],
    expected: type[E] | tuple[type[E], ...],
    on_failure: Callable[[E, int], float],
) -> NoReturn:
    """Call `refresh` until cancelled. `interval` is asked after each success; `on_failure` is as in `backoff.retry`."""
    while True:
        await retry(refresh, clock=clock, expected=expected, on_failure=on_failure)
        await clock.sleep(interval())
