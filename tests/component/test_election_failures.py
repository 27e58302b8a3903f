"""A term that cannot begin: storage that is away or damaged is news and no defect, everything else is one with a traceback."""

import asyncio
import logging

import pytest

from nstance.clock import SystemClock, SystemRng
from nstance.core.election import Timings
from nstance.objects import errors, lease, memory, slots
from nstance.objects.port import Key
from nstance.server.election import peers
from nstance.server.election.context import ElectionContext
from nstance.server.election.elector import Elector
from nstance.server.election.term import Term


class Nobody:
    """A dialer that reaches nobody."""

    async def dial(self, addresses: tuple[str, ...], fingerprint: str) -> peers.Link:
        raise peers.LinkClosedError("nobody is there")


async def failed_with(problem: Exception) -> None:
    clock = SystemClock()

    async def lead(term: Term) -> None:
        elector.stop()
        raise problem

    async def floor() -> int:
        return 0

    context = ElectionContext(
        store=memory.MemoryStore(clock),
        key=Key("leader.json"),
        me=lease.Holder(server="a", incarnation="a1"),
        timings=Timings(),
        clock=clock,
        rng=SystemRng(),
    )
    elector = Elector(context, dialer=Nobody(), tail=lambda: 0, floor=floor)
    async with asyncio.timeout(60):
        await elector.run(lead)


@pytest.mark.parametrize(
    ("problem", "level"),
    [
        (errors.UnavailableError("503"), logging.WARNING),
        (errors.PermissionDeniedError("403"), logging.WARNING),
        (slots.DamagedError("slot 7 is missing"), logging.ERROR),
        (KeyError("x"), logging.ERROR),
    ],
)
async def test_why_a_term_failed(problem: Exception, level: int, caplog: pytest.LogCaptureFixture) -> None:
    """Found by chaos: a 503 while a term began was logged with a traceback."""
    await failed_with(problem)
    (failure,) = (record for record in caplog.records if record.message == "failed to lead")
    assert failure.levelno == level
    assert (failure.exc_info is not None) == isinstance(problem, KeyError)
