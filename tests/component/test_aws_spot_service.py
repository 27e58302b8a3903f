"""The spot service of the cloud in a box: notice, wait, take back; and only what is spot."""

import asyncio

from nstance.clock import SystemClock, SystemRng
from nstance.dev.aws.moto import Moto
from nstance.dev.aws.rules import SPOT, Offer
from nstance.dev.aws.spot import SpotService
from nstance.dev.aws.stand_in import StandIn


def test_only_spot_instances_are_reclaimed_after_their_notice() -> None:
    asyncio.run(_reclaim())


async def _reclaim() -> None:
    stand_in = StandIn(Moto("http://127.0.0.1:1"), SystemClock())
    books, ended = stand_in.books, []
    books.offers |= {"i-1": Offer(SPOT, "a", "s"), "i-2": Offer("on-demand", "a", "s"), "i-3": Offer(SPOT, "a", "s")}

    async def interrupt(instance: str) -> None:
        ended.append(instance)
        books.offers.pop(instance)

    stand_in.instances.interrupt = interrupt  # type: ignore[method-assign]
    service = SpotService(stand_in, clock=SystemClock(), rng=SystemRng(), notice_seconds=0.05)
    assert service.candidates() == ["i-1", "i-3"]
    reclaiming = asyncio.create_task(service.reclaim(["i-1", "i-3"]))
    await asyncio.sleep(0)
    assert set(stand_in.metadata.spot_action) == {"i-1", "i-3"}
    assert service.candidates() == []
    assert ended == []
    books.offers.pop("i-3")  # it was deleted in the meantime
    await reclaiming
    assert ended == ["i-1"]
