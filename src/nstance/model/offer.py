"""Offers: the combinations of market, instance type and subnet in which a VM can be created."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class CapacityScope(Enum):
    """What has no capacity, and so what another attempt has to change."""

    OFFER = "offer"  # this market, instance type and subnet together
    MARKET = "market"  # spot or on-demand
    INSTANCE_TYPE = "instance-type"
    SUBNET = "subnet"
    HOST = "host"  # machines of our own: a smaller type may fit, and the end of any VM makes room
    TYPE_QUOTA = "type-quota"  # of the account, for a market and a family of types: another one may help
    QUOTA = "quota"  # of the account: no other offer helps


class Offer(NamedTuple):
    market: str  # "spot" or "on-demand"; empty: as the arguments say
    instance_type: str
    subnet: str

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.market, self.instance_type)))
        return " in ".join(filter(None, (what, self.subnet))) or "the only offer"


class CapacityKey(NamedTuple):
    """What is exhausted. Parts that do not matter for the scope are empty. Made by `core.offers.capacity_key` only."""

    scope: CapacityScope
    market: str = ""
    instance_type: str = ""
    subnet: str = ""
    revision: str = ""  # of an offer with an empty part

    def __str__(self) -> str:
        if self.scope is CapacityScope.QUOTA:
            return "the account's quota"
        return str(Offer(self.market, self.instance_type, self.subnet))


@dataclass(frozen=True, slots=True)
class Exhaustion:
    """What a leader remembers of a lack of capacity."""

    until: float  # not tried before
    times: int  # in a row
    message: str  # the provider's
    since: float = 0.0  # the last refusal
    is_error: bool = False  # the provider failed there repeatedly: used again if nothing else is left
