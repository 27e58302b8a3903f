"""How many VMs the cloud in memory has room for in each offer.

A limit is written as `market/instance type/subnet`, where `*` stands for anything: `spot/*/*` limits the spot market and
`spot/m7g.large/subnet-1` one offer. The parts that are named are the scope of the error.
"""

from collections.abc import Iterable, Mapping

from nstance.model.offer import CapacityScope, Offer
from nstance.providers import errors, port

ANY = "*"
_SCOPES: dict[tuple[bool, ...], CapacityScope] = {
    (False, False, False): CapacityScope.QUOTA,
    (True, False, False): CapacityScope.MARKET,
    (False, True, False): CapacityScope.INSTANCE_TYPE,
    (True, True, False): CapacityScope.TYPE_QUOTA,
    (False, False, True): CapacityScope.SUBNET,
}


def parse_offer(text: str) -> Offer:
    """Raises ValueError."""
    parts = text.split("/", 2)
    if len(parts) != 3:
        raise ValueError(f"expected market/instance type/subnet, with * for any, found {text!r}")
    return Offer(*parts)


def offer_of(request: port.CreateRequest) -> Offer:
    return Offer(request.market, request.instance_type, request.subnet)


def is_match(pattern: Offer, offer: Offer) -> bool:
    return all(wanted in (ANY, found) for wanted, found in zip(pattern, offer, strict=True))


def find_lack(
    limits: Mapping[Offer, int], request: port.CreateRequest, running: Iterable[port.CreateRequest]
) -> errors.NoCapacityError | None:
    """Why there is no room for one more VM. `running`: the requests of those that are there."""
    wanted = offer_of(request)
    matching = {pattern: limit for pattern, limit in limits.items() if is_match(pattern, wanted)}
    if not matching:
        return None
    used = [offer_of(each) for each in running]
    for pattern, limit in matching.items():
        if sum(is_match(pattern, offer) for offer in used) >= limit:
            return no_capacity(pattern)
    return None


def no_capacity(pattern: Offer) -> errors.NoCapacityError:
    scope = _SCOPES.get(tuple(part != ANY for part in pattern), CapacityScope.OFFER)
    subject = "/".join(pattern)
    return errors.NoCapacityError(f"{subject} has no capacity", scope=scope, subject=subject)
