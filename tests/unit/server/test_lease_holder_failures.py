"""A leader that cannot renew its lease says why."""

import asyncio
from dataclasses import replace

from nstance.core.election import Claim, Timings
from nstance.objects import errors, memory
from nstance.server.election.lease_holder import HeldLease
from support.hand_clock import HandClock
from support.standbys import make_context


async def test_a_storage_error_is_the_reason_of_the_end() -> None:
    """Nobody should have to guess whether the bucket is full, gone or out of reach."""

    async def full(verb: memory.Verb, key: str) -> memory.Fate:
        return (
            memory.Fate(error=errors.UnavailableError("no space left"))
            if verb is memory.Verb.REPLACE
            else memory.Fate()
        )

    clock = HandClock()
    context, time = make_context(clock)
    held = HeldLease(replace(context, store=memory.MemoryStore(clock, faults=full)), time, tail=0)
    term = await held.claim(Claim(1, None, alone=True))
    tasks = [asyncio.create_task(held.renew()), asyncio.create_task(held.send_heartbeats())]
    await clock.advance(Timings().length_alone + Timings().frozen_most + 1)
    for task in tasks:
        task.cancel()
    assert term.why == "the lease could not be renewed for 5 s: no space left"
