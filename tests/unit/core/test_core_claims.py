"""Which claim of the lease a standby may make, and when."""

from dataclasses import replace
from typing import Any

import pytest

from nstance.core.election import (
    Claim,
    KnownLease,
    Timings,
    claim_known,
    claim_missing,
    claim_offered,
    claim_renewed,
    claim_wait,
)

LED = KnownLease(
    epoch=3, sequence=7, version="v", free=False, server="a", incarnation="a1", members=(), length=15.0, promise=1.0
)
OUTSIDER = claim_wait(length=15.0, promise=1.0, member=False)
MEMBER = claim_wait(length=15.0, promise=1.0, member=True)


@pytest.mark.parametrize(
    ("fields", "unchanged", "claimed"),
    [
        pytest.param({}, OUTSIDER - 0.1, False, id="held by another server"),
        pytest.param({}, OUTSIDER + 0.1, True, id="unchanged for long enough"),
        pytest.param({"members": ("b1",)}, MEMBER + 0.1, True, id="a member waits for its promise"),
        pytest.param({"members": ("b1",)}, MEMBER - 0.1, False, id="a promise that still holds"),
        pytest.param({"free": True}, 0.0, True, id="released"),
        pytest.param({"incarnation": "b1"}, 0.0, True, id="its own from a term that ended"),
        pytest.param({"incarnation": "b0", "server": "b"}, 0.0, False, id="of an earlier process of the same server"),
    ],
)
def test_a_lease_in_storage(fields: dict[str, Any], unchanged: float, claimed: bool) -> None:
    known = replace(LED, **fields)
    claim, wait = claim_known(known, server="b", incarnation="b1", seen_at=100.0, now=100.0 + unchanged, poll=0.5)
    assert (claim is not None) is claimed
    if claim is not None:
        assert (claim, wait) == (Claim(4, "v", alone=known.server == "b"), 0.0)
    else:
        assert 0.0 < wait <= OUTSIDER


@pytest.mark.parametrize(("epoch", "claimed"), [(2, False), (3, True), (4, True)])
def test_an_offer_of_an_older_epoch_is_not_claimed(epoch: int, claimed: bool) -> None:
    expected = Claim(epoch + 1, "v", alone=False) if claimed else None
    assert claim_offered(epoch, "v", newest_epoch=3) == expected


@pytest.mark.parametrize(
    ("fields", "claimed"),
    [
        pytest.param({"members": ("b1",)}, True, id="the renewal that was announced"),
        pytest.param({"members": ("b1",), "sequence": 8}, False, id="a later one"),
        pytest.param({"members": ("c1",)}, False, id="no longer a member"),
        pytest.param({"members": ("b1",), "epoch": 4}, False, id="another term"),
        pytest.param({"members": ("b1",), "incarnation": "c1"}, False, id="another leader"),
        pytest.param({"members": ("b1",), "free": True}, False, id="released"),
    ],
)
def test_a_renewal_that_overtook_a_claim(fields: dict[str, Any], claimed: bool) -> None:
    found = claim_renewed(
        replace(LED, **fields), incarnation="b1", leader="a1", announced_epoch=3, announced_sequence=7
    )
    assert found == (Claim(4, "v", alone=False) if claimed else None)


@pytest.mark.parametrize(
    ("last_epoch", "missing", "claim"),
    [
        pytest.param(0, 0.0, Claim(1, None, alone=True), id="a new shard"),
        pytest.param(4, OUTSIDER - 0.1, None, id="removed: its holder may still act"),
        pytest.param(4, OUTSIDER + 0.1, Claim(5, None, alone=False), id="removed long ago"),
    ],
)
def test_a_missing_lease(last_epoch: int, missing: float, claim: Claim | None) -> None:
    found, wait = claim_missing(Timings(), last_epoch=last_epoch, missing_for=missing, poll=0.5)
    assert found == claim
    assert (wait > 0.0) is (claim is None)
