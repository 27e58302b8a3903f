"""The event loop in virtual time."""

import asyncio

from nstance.sim.loop import VirtualLoop


def test_a_finally_block_at_the_end_of_a_loop_runs_in_it() -> None:
    """A `finally` without a running loop made a loop of its own, and a later test was blamed for not closing it."""
    loop, seen = VirtualLoop(1), []

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append(asyncio.get_running_loop())

    loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(1))
    loop.finish()
    assert seen == [loop]
    assert loop.is_closed()
