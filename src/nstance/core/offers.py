"""Choose where a VM is created, and remember what has no capacity.

The memory belongs to the shard: a group learns from the refusals of the others. `capacity_key` is the only function that
makes its keys, for writing and for reading, so that what is marked is what is skipped. The parts of an offer are never
checked one by one: spot may be exhausted for one type in one subnet and for nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import inf

from nstance.model.group import Group
from nstance.model.instance import Instance
from nstance.model.offer import CapacityKey, CapacityScope, Exhaustion, Offer
from nstance.tasks.backoff import Backoff

MAX_RETRY_FACTOR = 10  # the wait grows from `capacity_retry` to this multiple of it
FORGET_SECONDS = 3600.0  # after its wait has passed, an exhaustion that nobody asked about again is forgotten
MAX_SERVER_ERRORS = 3  # of one instance on one offer, before that offer is avoided

ExhaustedOffers = Mapping[CapacityKey, Exhaustion]
Pair = tuple[str, str]  # market and instance type: what a group has preferences for


def capacity_key(offer: Offer, scope: CapacityScope, revision: str) -> CapacityKey:
    """What a refusal of this offer with this scope says something about. A part that is empty is as the arguments say, which
    may differ from group to group: that is known for this revision only."""
    market, instance_type, subnet = offer
    match scope:
        case CapacityScope.MARKET:
            return CapacityKey(scope, market=market, revision="" if market else revision)
        case CapacityScope.INSTANCE_TYPE if instance_type:
            return CapacityKey(scope, instance_type=instance_type)
        case CapacityScope.SUBNET if subnet:
            return CapacityKey(scope, subnet=subnet)
        case CapacityScope.HOST:  # the arguments may exclude some of the machines
            return CapacityKey(scope, instance_type=instance_type, revision=revision)
        case CapacityScope.TYPE_QUOTA:  # which types share it is not known
            return CapacityKey(scope, market, instance_type, revision="" if market and instance_type else revision)
        case CapacityScope.QUOTA:
            return CapacityKey(scope)
        case _:
            return CapacityKey(CapacityScope.OFFER, *offer, "" if all(offer) else revision)


def offer_of(instance: Instance) -> Offer:
    return Offer(instance.market, instance.instance_type, instance.subnet)


# ---- the memory


def find_exhaustion(exhausted: ExhaustedOffers, offer: Offer, revision: str, now: float) -> Exhaustion | None:
    """Why the offer is not to be tried now: the exhaustion that lasts longest. A lack of capacity hides an error."""
    if not exhausted:
        return None
    keys = (capacity_key(offer, scope, revision) for scope in CapacityScope)
    found = [known for key in keys if (known := exhausted.get(key)) is not None and now < known.until]
    return max(found, key=lambda known: (not known.is_error, known.until), default=None)


def mark_exhausted(
    exhausted: ExhaustedOffers, key: CapacityKey, message: str, *, now: float, retry: float
) -> ExhaustedOffers:
    """With what was refused just now. Refusals of calls that were sent together count once: the wait does not grow."""
    known = exhausted.get(key)
    times = 1
    if known is not None and not known.is_error:
        if now < known.until:
            return {**exhausted, key: replace(known, until=max(known.until, now + retry), since=now)}
        times = known.times + 1
    wait = Backoff(retry, retry * MAX_RETRY_FACTOR).delay(times)
    return {**_remembered(exhausted, now), key: Exhaustion(now + wait, times, message, now)}


def mark_failing(
    exhausted: ExhaustedOffers, key: CapacityKey, message: str, *, now: float, retry: float
) -> ExhaustedOffers:
    """With an offer on which the provider fails. The wait does not grow: an outage says nothing about capacity."""
    known = exhausted.get(key)
    if known is not None and now < known.until and not known.is_error:
        return exhausted
    return {**_remembered(exhausted, now), key: Exhaustion(now + retry, 1, message, now, is_error=True)}


def mark_available(exhausted: ExhaustedOffers, offer: Offer, revision: str, *, asked: float) -> ExhaustedOffers:
    """Without what a VM disproves that was created in this offer by a call of this time: the refusals before it."""
    keys = {capacity_key(offer, scope, revision) for scope in CapacityScope}
    return _without(exhausted, {key for key in keys if key in exhausted and exhausted[key].since <= asked})


def mark_freed(exhausted: ExhaustedOffers, offer: Offer, revision: str) -> ExhaustedOffers:
    """Without the limits of ours that the end of a VM in this offer makes room in."""
    ours = {capacity_key(offer, scope, revision) for scope in (CapacityScope.SUBNET, CapacityScope.QUOTA)}
    shared = {key for key in exhausted if key.scope is CapacityScope.HOST}
    shared |= {key for key in exhausted if key.scope is CapacityScope.TYPE_QUOTA and key.market == offer.market}
    return _without(exhausted, ours | shared)


def _without(exhausted: ExhaustedOffers, keys: Set[CapacityKey]) -> ExhaustedOffers:
    if keys.isdisjoint(exhausted):
        return exhausted
    return {key: known for key, known in exhausted.items() if key not in keys}


def _remembered(exhausted: ExhaustedOffers, now: float) -> dict[CapacityKey, Exhaustion]:
    return {key: known for key, known in exhausted.items() if now < known.until + FORGET_SECONDS}


# ---- the choice


def list_pairs(group: Group) -> list[Pair]:
    """The group's markets and instance types, the preferred one first."""
    return [(market, kind) for market in group.markets or ("",) for kind in group.instance_types or ("",)]


def list_offers(group: Group, pairs: Sequence[Pair] | None = None) -> Iterator[Offer]:
    for market, kind in list_pairs(group) if pairs is None else pairs:
        for subnet in group.subnets or ("",):
            yield Offer(market, kind, subnet)


def choose_offer(
    group: Group,
    exhausted: ExhaustedOffers,
    *,
    now: float,
    used: Mapping[str, int],
    crowded: Set[str] = frozenset(),
    pairs: Sequence[Pair] | None = None,
) -> Offer | None:
    """The least used subnet of the most preferred market and type that has one left; None: nothing is left. `used`: VMs of
    the group by subnet. `pairs`: instead of the group's. An offer on which the provider fails is the last resort."""
    failing: list[Offer] = []
    for pair in list_pairs(group) if pairs is None else pairs:
        usable: list[Offer] = []
        for offer in list_offers(group, [pair]):
            known = find_exhaustion(exhausted, offer, group.infra_hash, now)
            if known is None:
                usable.append(offer)
            elif known.is_error:
                failing.append(offer)
        if usable:
            return min(usable, key=lambda o: (o.subnet in crowded, used.get(o.subnet, 0)))
    return failing[0] if failing else None


def retry_at(group: Group, exhausted: ExhaustedOffers, now: float, pairs: Sequence[Pair] | None = None) -> float:
    """When the first of these offers may be tried again: now, if one can be."""
    found = [find_exhaustion(exhausted, o, group.infra_hash, now) for o in list_offers(group, pairs)]
    return min((now if known is None else known.until for known in found), default=inf)


def explain_blocked(group: Group, exhausted: ExhaustedOffers, now: float) -> str:
    """Why no instance of the group can be created anywhere; empty if one can."""
    if not exhausted:
        return ""
    found = {o: find_exhaustion(exhausted, o, group.infra_hash, now) for o in list_offers(group)}
    lacking = {offer: known for offer, known in found.items() if known is not None and not known.is_error}
    if len(lacking) < len(found):
        return ""
    first = min(lacking.values(), key=lambda known: known.until)
    every = f"none of {len(found)} offers has" if len(found) > 1 else f"{next(iter(found))} has no"
    return f"{every} capacity: {first.message}"


# ---- preference


def rank(group: Group, instance: Instance) -> int | None:
    """The place of its market and type among the group's, 0 is the preferred one; None: it is not among them."""
    pair = (instance.market, instance.instance_type)
    return next((place for place, each in enumerate(list_pairs(group)) if each == pair), None)


def better_pairs(group: Group, instance: Instance) -> list[Pair]:
    place = rank(group, instance)
    return list_pairs(group)[:place] if place else []


def explain_choice(group: Group, exhausted: ExhaustedOffers, offer: Offer, now: float) -> str:
    """What was chosen among several, and why not something better."""
    pairs = list_pairs(group)
    if len(pairs) == 1:
        return ""
    place = pairs.index((offer.market, offer.instance_type)) if offer[:2] in pairs else 0
    if place == 0:
        return f"{offer}, as preferred"
    reasons: dict[str, None] = {}
    for better in list_offers(group, pairs[:place]):
        known = find_exhaustion(exhausted, better, group.infra_hash, now)
        if known is not None:
            reasons[f"{better}: {known.message}"] = None
    more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"{offer}, because of no capacity in {next(iter(reasons))}{more}" if reasons else str(offer)
