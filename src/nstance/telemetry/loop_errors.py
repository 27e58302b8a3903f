"""Errors of callbacks and tasks that nothing awaits.

They are logged and counted, so that an alert can see them. They do not end a term: their cause is unknown here, and a
peer whose bytes confuse a connection must not decide who leads. Parts that a term depends on report their own failures
(`server/state/shard.py`). One kind is no error: uvloop reports that TLS had something to send on a connection that this
process has just closed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


def install(loop: asyncio.AbstractEventLoop, count: Callable[[], None]) -> None:
    """`count` is called for each error, like `Metrics.loop_failed`."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if _is_write_after_close(context):
            return
        count()
        about = ", ".join(f"{key}: {value!r}" for key, value in context.items() if key != "exception")
        log.error("unhandled error in the event loop", exc_info=context.get("exception"), extra={"context": about})

    loop.set_exception_handler(handle)


def _is_write_after_close(context: dict[str, Any]) -> bool:
    error = context.get("exception")
    return "protocol" in context and isinstance(error, RuntimeError) and str(error).endswith("the handler is closed")
