"""What a leader remembers of offers without capacity, for all groups of the shard. A new leader learns it again."""

from nstance.clock import Clock
from nstance.core import offers
from nstance.core.offers import ExhaustedOffers
from nstance.model.group import Group
from nstance.model.instance import Instance
from nstance.model.offer import Exhaustion, Offer


class OfferMemory:
    """Of one shard during one term."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.exhausted: ExhaustedOffers = {}

    def update(self, exhausted: ExhaustedOffers) -> bool:
        """Take over what a decision learned. Returns whether something is not exhausted any more."""
        freed = bool(self.exhausted.keys() - exhausted.keys())
        self.exhausted = exhausted
        return freed

    def is_exhausted(self, instance: Instance) -> bool:
        """Whether the provider is known to have no capacity for it where it is to be created."""
        offer, now = offers.offer_of(instance), self._clock.steady()
        known = offers.find_exhaustion(self.exhausted, offer, instance.infra_hash, now)
        return known is not None and not known.is_error

    def explain_blocked(self, group: Group) -> str:
        """Why no instance of the group can be created anywhere; empty if one can."""
        return offers.explain_blocked(group, self.exhausted, self._clock.steady())

    def list_exhausted(self, group: Group) -> list[tuple[Offer, Exhaustion]]:
        """Of the group's offers."""
        if not self.exhausted:
            return []
        now = self._clock.steady()
        found = (
            (o, offers.find_exhaustion(self.exhausted, o, group.infra_hash, now)) for o in offers.list_offers(group)
        )
        return [(offer, known) for offer, known in found if known is not None]

    def count(self) -> int:
        now = self._clock.steady()
        return sum(now < known.until for known in self.exhausted.values())
