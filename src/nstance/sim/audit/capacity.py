"""Checks the fallback to other offers when the provider has no capacity.

C1 no create call for an offer that the leader knows to be exhausted; C2 never two VMs for one ID over a fallback; C3 no
instance fails for lack of capacity while an offer of its revision was never refused. What a leader knows is what the cloud
answered to it and its own decision has taken into account; its memory is not looked at.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nstance.clock import STEADY_SLEW
from nstance.core.offers import list_offers, offer_of
from nstance.model.ids import InstanceId
from nstance.model.instance import Cause, Instance, Put, State
from nstance.model.offer import CapacityScope, Offer
from nstance.objects import slots
from nstance.providers import errors, memory_offers, port

if TYPE_CHECKING:
    from nstance.sim.world import World

# Where the end of a VM makes room:
OURS = frozenset({CapacityScope.SUBNET, CapacityScope.TYPE_QUOTA, CapacityScope.QUOTA, CapacityScope.HOST})


@dataclass(slots=True)
class Refusal:
    id: InstanceId
    offer: Offer
    scope: CapacityScope
    leader: tuple[str, int]  # the server that received it, and its epoch
    at: float  # when it was received: what a decision remembers lasts from then, although the decision is stored later
    is_known: bool = False  # a decision took it into account
    is_over: bool = False  # something has shown or made room since

    def covers(self, offer: Offer) -> bool:
        match self.scope:
            case CapacityScope.QUOTA:
                return True
            case CapacityScope.MARKET:
                return bool(offer.market) and offer.market == self.offer.market
            case CapacityScope.INSTANCE_TYPE:
                return bool(offer.instance_type) and offer.instance_type == self.offer.instance_type
            case CapacityScope.SUBNET:
                return bool(offer.subnet) and offer.subnet == self.offer.subnet
            case CapacityScope.TYPE_QUOTA:
                return all(offer[:2]) and offer[:2] == self.offer[:2]
            case CapacityScope.OFFER | CapacityScope.HOST:
                return all(offer) and offer == self.offer


class CapacityAuditor:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._refusals: list[Refusal] = []

    def on_refused(self, request: port.CreateRequest, error: errors.NoCapacityError, leader: tuple[str, int]) -> None:
        """A server has received this answer."""
        self._world.count(f"refused {error.scope.value}")
        offer = memory_offers.offer_of(request)
        self._refusals.append(Refusal(request.id, offer, error.scope, leader, self._world.now))

    def on_created(self, offer: Offer) -> None:
        """A VM was created: what was refused before that is there again."""
        for refusal in self._refusals:
            refusal.is_over |= refusal.covers(offer)

    def on_vm_end(self) -> None:
        for refusal in self._refusals:
            refusal.is_over |= refusal.scope in OURS

    def on_create_call(self, request: port.CreateRequest, leader: tuple[str, int]) -> None:
        """A call that may find the VM of an earlier one is allowed."""
        if request.may_exist:
            return
        offer = memory_offers.offer_of(request)
        for refusal in self._refusals:
            if refusal.leader == leader and self._is_active(refusal) and refusal.covers(offer):
                age = self._world.now - refusal.at
                text = f"{request.id} is created in {offer}, which was refused to {refusal.id} {age:.1f} s ago"
                self._world.violation(f"C1: {text}")
                return

    def _is_active(self, refusal: Refusal) -> bool:
        fastest = 1 + 2 * self._world.setup.drift + STEADY_SLEW  # of the servers' clocks
        retry = self._world.desired_groups.capacity_retry / fastest
        return refusal.is_known and not refusal.is_over and self._world.now < refusal.at + retry

    def on_second_vm(self, id: InstanceId) -> None:
        self._world.violation(f"C2: a second VM was created for {id}, in another offer")

    def check_decision(self, entry: slots.Entry, before: dict[InstanceId, Instance], leader: tuple[str, int]) -> None:
        """`before`: the records as they are stored; a decision that is not stored yet may lie between."""
        for new in (change.instance for change in entry.changes if isinstance(change, Put)):
            refusals = [r for r in self._refusals if r.id == new.id and r.leader == leader and not r.is_known]
            old = before.get(new.id)
            moved = old is not None and new.state is State.PENDING and offer_of(old) != offer_of(new)
            has_changed = old is None or old.state is not new.state
            ended = has_changed and new.message.startswith("no ") and "capacity" in new.message
            if moved:
                self._world.count("fell back")
            if moved or ended:
                for refusal in refusals:
                    refusal.is_known = True
            if new.state is State.DELETED:
                self.on_vm_end()  # the leader learns of it now
            if new.state is State.FAILED and ended and new.replaces_for is not Cause.PREFERENCE and not new.own_type:
                self._check_failed(new, leader)

    def _check_failed(self, new: Instance, leader: tuple[str, int]) -> None:
        mine = [refusal for refusal in self._refusals if refusal.leader == leader]
        group = self._world.auditor.desired.of_revision(new.key, new.infra_hash)
        left = [
            offer
            for offer in (list_offers(group) if group is not None else ())
            if all(offer) and not any(refusal.covers(offer) for refusal in mine)
        ]
        if left:
            self._world.violation(f"C3: {new.id} fails for lack of capacity, but {left[0]} was never refused")
