"""The limits of the cloud in memory, by offer."""

from pathlib import Path

import pytest

from nstance.clock import SystemClock
from nstance.model.ids import ClusterId, GroupName, InstanceId, Kind, ShardId, TenantId
from nstance.model.offer import CapacityScope, Offer
from nstance.providers import errors, memory_offers, registry
from nstance.providers.port import CreateRequest, Scope

SCOPE = Scope(cluster=ClusterId("c"), shard=ShardId("s"))


def request(offer: Offer, number: int = 1) -> CreateRequest:
    market, instance_type, subnet = offer
    return CreateRequest(
        id=InstanceId(f"web-{number:026}"),
        tenant=TenantId("default"),
        group=GroupName("web"),
        kind=Kind("web"),
        template="t",
        created=0.0,
        market=market,
        instance_type=instance_type,
        subnet=subnet,
    )


@pytest.mark.parametrize(
    ("pattern", "scope"),
    [
        ("spot/*/*", CapacityScope.MARKET),
        ("*/m7/*", CapacityScope.INSTANCE_TYPE),
        ("*/*/s1", CapacityScope.SUBNET),
        ("*/*/*", CapacityScope.QUOTA),
        ("spot/m7/s1", CapacityScope.OFFER),
        ("spot/m7/*", CapacityScope.TYPE_QUOTA),
    ],
)
def test_the_named_parts_are_the_scope(pattern: str, scope: CapacityScope) -> None:
    limits = {memory_offers.parse_offer(pattern): 1}
    here = request(Offer("spot", "m7", "s1"))
    assert memory_offers.find_lack(limits, here, []) is None
    lack = memory_offers.find_lack(limits, here, [here])
    assert lack is not None
    assert (lack.scope, lack.subject) == (scope, pattern)
    elsewhere = request(Offer("on-demand", "m6", "s2"))
    assert (memory_offers.find_lack(limits, elsewhere, [here]) is None) == (scope is not CapacityScope.QUOTA)


async def test_the_option_of_the_provider() -> None:
    provider = registry.open_provider(
        "memory", scope=SCOPE, options={"offers": {"spot/*/*": 1}}, cachedir=Path(), clock=SystemClock()
    )
    await provider.create(request(Offer("spot", "m7", "s1"), 1))
    with pytest.raises(errors.NoCapacityError) as caught:
        await provider.create(request(Offer("spot", "m6", "s2"), 2))
    assert caught.value.scope is CapacityScope.MARKET
    await provider.create(request(Offer("on-demand", "m6", "s2"), 2))
    await provider.delete(InstanceId(f"web-{1:026}"), None)
    await provider.create(request(Offer("spot", "m6", "s2"), 3))  # there is room again
    with pytest.raises(errors.PermanentError, match="expected market/instance type/subnet"):
        registry.open_provider(
            "memory", scope=SCOPE, options={"offers": {"spot": 1}}, cachedir=Path(), clock=SystemClock()
        )
