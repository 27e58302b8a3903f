"""Detects from a thread that the event loop is blocked.

A blocked loop cannot notice that its lease runs out, although threads may still act for it. So a thread checks whether the
loop ran lately, and revokes the term before another server may lead. The next confirmation of the lease restores it.
"""

import asyncio
import logging
import sys
import threading
import traceback
from typing import Protocol

from nstance.clock import Clock

log = logging.getLogger(__name__)

MAX_BLOCKED_SHARE = 0.8  # of the lease's length
_TICKS = 16  # of the loop within that time
_CHECKS = 4  # of the thread within that time
_FRAMES = 4


class Revocable(Protocol):
    def revoke(self) -> None:
        """Called from another thread."""
        ...


class Watchdog:
    """Use: `with Watchdog(term, clock=clock, length=timings.promise): …` around a term, in the event loop's thread."""

    def __init__(self, term: Revocable, *, clock: Clock, length: float) -> None:
        self._term = term
        self._clock = clock
        self._limit = length * MAX_BLOCKED_SHARE
        self._ticked = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.alarms = 0

    def __enter__(self) -> "Watchdog":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick(loop)
        self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._thread is not None:
            self._thread.join(1.0)  # it waits only for the event that was just set

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticked = self._clock.monotonic()
        self._ticker = loop.call_later(self._limit / _TICKS, self._tick, loop)

    def _watch(self, watched: int) -> None:
        noticed = False
        while not self._ended.wait(self._limit / _CHECKS):
            blocked = self._clock.monotonic() - self._ticked
            if blocked < self._limit:
                if noticed:
                    log.info("event loop running again")
                noticed = False
                continue
            self._term.revoke()  # with each check: a confirmation may have been under way
            if not noticed:
                noticed = True
                log.error(
                    "event loop blocked: this server stops acting until its lease is confirmed again",
                    extra={"seconds": round(blocked, 3), "where": _where(watched)},
                )
                self.alarms += 1


def _where(thread: int) -> str:
    """What the loop's thread is doing: the innermost calls."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "unknown"
    # Innermost first; no source lines, reading files takes time.
    calls = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_FRAMES, lookup_lines=False)
    return " < ".join(f"{call.filename.rpartition('/')[2]}:{call.lineno} {call.name}" for call in calls)
