"""The spot service: it announces that it takes instances back, waits, and takes them."""

import logging

from nstance.clock import Clock, Rng
from nstance.dev.aws.rules import SPOT
from nstance.dev.aws.stand_in import StandIn

log = logging.getLogger(__name__)

NOTICE_SECONDS = 20.0  # two minutes on AWS: too long to watch
STORM_SECONDS = 40.0  # from one wave to the next
SHARE = 1 / 3  # of the spot instances that a wave takes


class SpotService:
    def __init__(self, stand_in: StandIn, *, clock: Clock, rng: Rng, notice_seconds: float = NOTICE_SECONDS) -> None:
        self._stand_in = stand_in
        self._clock = clock
        self._rng = rng
        self._notice_seconds = notice_seconds

    def candidates(self) -> list[str]:
        """Spot instances that exist and are not announced yet, oldest first."""
        offers, announced = self._stand_in.books.offers, self._stand_in.metadata.spot_action
        return [id for id, offer in offers.items() if offer.market == SPOT and id not in announced]

    async def reclaim(self, instances: list[str]) -> None:
        """Announce, wait, take back. Instances that ended before are left alone."""
        ends = self._clock.wall() + self._notice_seconds
        self._stand_in.metadata.spot_action.update(dict.fromkeys(instances, ends))
        log.info("spot interruption announced", extra={"instances": ",".join(instances)})
        await self._clock.sleep(self._notice_seconds)
        for instance in instances:
            if instance in self._stand_in.books.offers:
                await self._stand_in.instances.interrupt(instance)
        log.info("spot instances reclaimed", extra={"instances": ",".join(instances)})

    async def storm(self) -> None:
        """Wave after wave, until cancelled."""
        while True:
            await self._clock.sleep(STORM_SECONDS)
            there = self.candidates()
            count = max(1, round(len(there) * SHARE)) if there else 0
            chosen = [there.pop(int(self._rng.uniform(0, len(there) - 1e-9))) for _ in range(count)]
            if chosen:
                await self.reclaim(chosen)
