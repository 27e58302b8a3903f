"""Errors of callbacks and tasks that nothing awaits.

They are logged and counted, so that an alert can see them. They do not end a term: their cause is unknown here, and a
peer whose bytes confuse a connection must not decide who leads. Parts that a term depends on report their own failures
(`server/state/shard.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


def install(loop: asyncio.AbstractEventLoop, count: Callable[[], None]) -> None:
    """`count` is `Metrics.loop_failed`."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        count()
        about = ", ".join(f"{key}: {value!r}" for key, value in context.items() if key != "exception")
        log.error("unhandled error in the event loop", exc_info=context.get("exception"), extra={"context": about})

    loop.set_exception_handler(handle)
