"""The loop is blocked for real, and only until the watchdog has acted: nothing here depends on how fast that is."""

import asyncio
import logging
import threading

import pytest

from nstance import clock
from nstance.server.election import term as terms
from nstance.server.leader.watchdog import Watchdog

SECONDS = 10.0


def block(seconds: float) -> None:
    """As a synchronous call in the loop's thread would."""
    threading.Event().wait(seconds)


class Bell:
    """A term that can be waited for without the event loop."""

    def __init__(self) -> None:
        self.rung = threading.Event()
        self.by: threading.Thread | None = None

    def revoke(self) -> None:
        self.by = threading.current_thread()
        self.rung.set()


async def test_a_blocked_loop_loses_its_permission_to_act(caplog: pytest.LogCaptureFixture) -> None:
    bell = Bell()
    with Watchdog(bell, clock=clock.SystemClock(), length=0.2) as dog:
        await asyncio.sleep(0)
        assert bell.rung.wait(SECONDS), "the watchdog did not notice"
        while not dog.barked:
            block(0.01)
    assert bell.by is not threading.main_thread()
    assert dog.barked == 1
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "test_f23" in record.__dict__["where"]


async def test_a_real_term_stops_leading_while_the_loop_is_blocked_and_may_lead_again() -> None:
    system = clock.SystemClock()

    async def ours() -> bool:
        return True

    term = terms.Term(7, system, reread=ours)
    term.confirm(system.monotonic() + 1000, length=1000)
    with Watchdog(term, clock=system, length=0.2):
        assert term.leading()
        for _ in range(1000):
            if not term.leading():
                break
            block(0.01)
        assert not term.leading()
        term.confirm(system.monotonic() + 1000, length=1000)
        assert term.leading()


async def test_a_loop_that_turns_is_left_alone() -> None:
    class Still:
        """Time does not pass, so the loop always seems to have turned just now."""

        looked = threading.Event()

        def monotonic(self) -> float:
            if threading.current_thread() is not threading.main_thread():
                self.looked.set()
            return 5.0

        def boot(self) -> float:
            return 5.0

        wall = steady = boot

        async def sleep(self, seconds: float) -> None: ...

    bell = Bell()
    with Watchdog(bell, clock=Still(), length=0.1):
        assert Still.looked.wait(SECONDS)
    assert not bell.rung.is_set()


async def test_stopping_ends_the_thread_and_the_timer() -> None:
    before = threading.active_count()
    dog = Watchdog(Bell(), clock=clock.SystemClock(), length=100.0)
    dog.start()
    assert threading.active_count() == before + 1
    dog.stop()
    dog.stop()
    assert threading.active_count() == before


async def test_one_standstill_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Counting(Bell):
        count = 0

        def revoke(self) -> None:
            self.count += 1
            if self.count >= 3:
                self.rung.set()

    bell = Counting()
    with Watchdog(bell, clock=clock.SystemClock(), length=0.1) as dog:
        assert bell.rung.wait(SECONDS)
    assert dog.barked == 1
    assert sum(r.levelno == logging.ERROR for r in caplog.records) == 1
