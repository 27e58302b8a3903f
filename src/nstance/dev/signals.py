"""Ends a program on a signal."""

import asyncio
import signal


def stop_event() -> asyncio.Event:
    """An event that SIGINT, SIGTERM and SIGHUP set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
