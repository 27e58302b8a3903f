"""Calls to a cloud's secret service: bounded in time, repeated after failures that may pass, with errors of the secret port."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from nstance.clock import Clock
from nstance.clouds.errors import CredentialsError, NoAnswerError, NotSentError
from nstance.secretstore import errors

CALL_TIMEOUT_SECONDS = 30.0
ATTEMPTS = 3
BACKOFF_SECONDS = 0.2


async def repeat(
    send: Callable[[], Awaitable[dict[str, Any]]],
    translate: Callable[[Exception], errors.SecretError],
    *,
    refused: type[Exception],
    where: str,
    attempts: int,
    clock: Clock,
) -> dict[str, Any]:
    """`where`: what is called for, and in which service. `refused`: the cloud's own errors, which `translate` knows."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            for attempt in itertools.count(1):
                try:
                    return await send()
                except CredentialsError as problem:
                    raise errors.UnavailableError(f"{where}: {problem}") from problem
                except (refused, NotSentError, NoAnswerError) as problem:
                    failure = translate(problem)
                    if not isinstance(failure, errors.UnavailableError) or attempt >= attempts:
                        raise failure from problem
                await clock.sleep(BACKOFF_SECONDS * 2 ** (attempt - 1))
    except TimeoutError as problem:
        raise errors.UnavailableError(f"{where}: no answer within {CALL_TIMEOUT_SECONDS:.0f} s") from problem
    raise AssertionError("unreachable")
