"""Calls to a cloud's secret service: bounded in time, repeated after failures that may pass, with errors of the secret port."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nstance.clock import Clock
from nstance.clouds.errors import CredentialsError, NoAnswerError, NotSentError
from nstance.secretstore import errors
from nstance.tasks.backoff import Backoff, retry

CALL_TIMEOUT_SECONDS = 30.0
ATTEMPTS = 3
RETRY = Backoff(0.2, 10.0)


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

    def on_failure(problem: Exception, failures: int) -> float:
        failure = translate(problem)
        if not isinstance(failure, errors.UnavailableError) or failures >= attempts:
            raise failure from problem
        return RETRY.delay(failures)

    try:
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            return await retry(
                send, clock=clock, expected=(refused, NotSentError, NoAnswerError), on_failure=on_failure
            )
    except CredentialsError as problem:
        raise errors.UnavailableError(f"{where}: {problem}") from problem
    except TimeoutError as problem:
        raise errors.UnavailableError(f"{where}: no answer within {CALL_TIMEOUT_SECONDS:.0f} s") from problem
