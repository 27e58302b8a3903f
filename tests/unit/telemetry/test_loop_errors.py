"""An error that nobody waits for is logged with its context and counted."""

import asyncio
import logging

import pytest

from nstance.telemetry import loop_errors
from nstance.telemetry.metrics import Metrics


async def test_a_callback_that_raises_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    metrics, loop = Metrics(), asyncio.get_running_loop()
    loop_errors.install(loop, metrics.loop_failed)

    def callback() -> None:
        raise RuntimeError("a bug")

    try:
        loop.call_soon(callback)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert b"nstance_event_loop_errors_total 1.0" in metrics.render()
    [record] = [r for r in caplog.records if r.name == loop_errors.__name__]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "callback" in record.__dict__["context"]
