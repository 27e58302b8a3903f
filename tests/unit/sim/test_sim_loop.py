"""The event loop in virtual time, where the simulator's own stories do not look."""

import asyncio

from nstance.sim.loop import VirtualLoop


def test_what_ends_with_its_loop_still_runs_in_it() -> None:
    """Found by chance: a `finally` that had nobody to wait for made a loop of its own, and the garbage collector blamed
    whatever test came later for not closing it."""
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
