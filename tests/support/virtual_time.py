"""Tests in virtual time: hours pass in milliseconds, and nothing depends on how fast the machine is."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, cast

from nstance.sim.loop import Machine, VirtualLoop

SEEDS = range(3)  # of the order in which what is ready runs


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test with a virtual clock, its first argument, once for each seed."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        for seed in SEEDS:
            with asyncio.Runner(loop_factory=lambda seed=seed: VirtualLoop(seed)) as runner:  # type: ignore[misc]
                loop = cast(VirtualLoop, runner.get_loop())
                runner.run(_bounded(test(Machine("test", loop), **arguments)))

    del run.__wrapped__  # or pytest would look for a fixture of the clock's name
    signature = inspect.signature(test)
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return run


async def _bounded(test: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(7 * 24 * 3600):
        await test
