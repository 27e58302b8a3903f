"""Notices from outside when the event loop stands still (F23).

A loop that does not turn cannot notice that its lease runs out, but threads may still be acting for it. So a thread looks
whether the loop has turned lately, and takes the permission to act away before somebody else may have it. The term gets
it back by itself, with the next confirmation, if the lease is still ours.
"""

import asyncio
import logging
import sys
import threading
import traceback
from typing import Protocol

from nstance.clock import Clock

log = logging.getLogger(__name__)

SHARE = 0.8  # of the lease's length that the loop may stand still
_TURNS = 16  # of the loop that are looked for in that time
_LOOKS = 4
_FRAMES = 4


class Revocable(Protocol):
    def revoke(self) -> None:
        """Called from another thread."""
        ...


class Watchdog:
    """Use: `with Watchdog(term, clock=clock, length=timings.promise): …` around a reign, in the event loop's thread."""

    def __init__(self, term: Revocable, *, clock: Clock, length: float) -> None:
        self._term = term
        self._clock = clock
        self._limit = length * SHARE
        self._turned = 0.0
        self._turning: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.barked = 0

    def __enter__(self) -> "Watchdog":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._turn(loop)
        self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._turning is not None:
            self._turning.cancel()
        if self._thread is not None:
            self._thread.join(1.0)  # it only ever waits for the event that was just set

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turned = self._clock.monotonic()
        self._turning = loop.call_later(self._limit / _TURNS, self._turn, loop)

    def _watch(self, watched: int) -> None:
        noticed = False
        while not self._ended.wait(self._limit / _LOOKS):
            still = self._clock.monotonic() - self._turned
            if still < self._limit:
                if noticed:
                    log.info("the event loop turns again")
                noticed = False
                continue
            self._term.revoke()  # again at each look: a confirmation may have been on its way
            if not noticed:
                noticed = True
                log.error(
                    "the event loop stands still: this server stops acting until its lease is confirmed again",
                    extra={"seconds": round(still, 3), "where": _where(watched)},
                )
                self.barked += 1


def _where(thread: int) -> str:
    """What the loop's thread is doing: the innermost calls."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "unknown"
    # Innermost first; no source lines, reading files takes time.
    calls = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_FRAMES, lookup_lines=False)
    return " < ".join(f"{call.filename.rpartition('/')[2]}:{call.lineno} {call.name}" for call in calls)
