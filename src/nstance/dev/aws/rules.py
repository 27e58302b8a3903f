"""What the stand-in for AWS does besides what moto does: faults and limits, set by tests or by `make dev-aws`."""

import argparse
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

ON_DEMAND, SPOT = "on-demand", "spot"


@dataclass(frozen=True, slots=True)
class Offer:
    """A market, an instance type and a subnet; empty means any."""

    market: str = ""
    instance_type: str = ""
    subnet: str = ""

    def covers(self, other: "Offer") -> bool:
        return (
            self.market in ("", other.market)
            and self.instance_type in ("", other.instance_type)
            and self.subnet in ("", other.subnet)
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """One reply that goes wrong. `after_effect`: the call is carried out, and its reply is lost."""

    code: str = ""
    message: str = ""
    status: int = 400
    after_effect: bool = False
    before_effect: bool = False  # the connection is cut before anything is done
    delay: float = 0.0


THROTTLED = Fault("RequestLimitExceeded", "Request limit exceeded.", 503)
OUTAGE = Fault("Unavailable", "The server is overloaded and can't handle the request.", 503)
INTERNAL = Fault("InternalError", "An internal error has occurred.", 500)
LOST_REPLY = Fault(after_effect=True)
LOST_REQUEST = Fault(before_effect=True)
QUOTA = Fault("VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit allows.")
EXPIRED = Fault("RequestExpired", "Request has expired.")
DENIED = {
    "ec2": Fault("UnauthorizedOperation", "You are not authorized to perform this operation.", 403),
    "elasticloadbalancing": Fault("AccessDenied", "User is not authorized to perform this action", 403),
    "ssm": Fault("AccessDeniedException", "User is not authorized to perform this action", 400),
}


@dataclass(slots=True)
class Rules:
    faults: dict[str, deque[Fault]] = field(default_factory=dict)  # by action: used up one by one
    outages: dict[str, Fault] = field(default_factory=dict)  # by action, or "*": until it is removed
    capacity: dict[Offer, int] = field(default_factory=dict)  # how many more can be created
    visible_after: float = 0.0  # seconds from a create until describe calls show the instance
    terminated_shown: float = 3600.0  # seconds for which a terminated instance is listed
    page_size: int = 1000
    remembers_listings: bool = False  # see `listings`
    call_seconds: float = 0.0  # each call takes so long
    detach_seconds: float = 0.0
    healthy_after: float = 0.0
    deregistration_seconds: float = 0.0
    bucket_size: float = 0.0  # of the launch budget; 0: there is none
    bucket_refill: float = 2.0  # a second

    def next_fault(self, action: str) -> Fault | None:
        waiting = self.faults.get(action)
        if waiting:
            return waiting.popleft()
        return self.outages.get(action) or self.outages.get("*")

    def add(self, action: str, *faults: Fault) -> None:
        """The next calls of the action end so, one after the other."""
        self.faults.setdefault(action, deque()).extend(faults)

    def deny(self, *actions: str, service: str = "ec2") -> None:
        """The caller's policy does not allow them, until the entries of `outages` are removed."""
        self.outages.update(dict.fromkeys(actions, DENIED[service]))

    def heal(self) -> None:
        """No more faults. Limits of capacity, budgets and delays stay."""
        self.faults.clear()
        self.outages.clear()

    def take(self, offer: Offer) -> bool:
        """Whether an instance can be created there; takes one place of each limit that covers it."""
        limits = [limit for limit in self.capacity if limit.covers(offer)]
        if any(self.capacity[limit] <= 0 for limit in limits):
            return False
        for limit in limits:
            self.capacity[limit] -= 1
        return True

    def give_back(self, offer: Offer) -> None:
        for limit in self.capacity:
            if limit.covers(offer):
                self.capacity[limit] += 1


def offer_of(params: Mapping[str, str]) -> Offer:
    """Of the form parameters of RunInstances."""
    market = SPOT if params.get("InstanceMarketOptions.MarketType") == SPOT else ON_DEMAND
    subnet = params.get("SubnetId") or params.get("NetworkInterface.1.SubnetId", "")
    return Offer(market, params.get("InstanceType", ""), subnet)


def parse_capacity(text: str) -> tuple[Offer, int]:
    """The argument of --capacity."""
    kind, _, count = text.partition(":")
    if not kind or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an instance type and a number, such as m7g.large:0, found {text!r}")
    return Offer(instance_type=kind), int(count)
