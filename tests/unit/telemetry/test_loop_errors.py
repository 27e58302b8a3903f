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


def test_tls_that_writes_to_a_closed_connection_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """uvloop says so when this process closes a connection on which data has just arrived."""
    loop = asyncio.new_event_loop()
    metrics = Metrics()
    loop_errors.install(loop, metrics.loop_failed)
    closed = RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
    loop.call_exception_handler({"message": "Fatal error on SSL protocol", "exception": closed, "protocol": object()})
    loop.close()
    assert b"nstance_event_loop_errors_total 0.0" in metrics.render()
    assert not caplog.records
