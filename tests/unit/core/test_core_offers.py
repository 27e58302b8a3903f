"""Offers: which one is chosen, what a refusal rules out, and what follows from it for a group."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.core import offers
from nstance.model import events as ev
from nstance.model.decision import CreateVm, Rejection, Trend
from nstance.model.events import Failure
from nstance.model.group import Group, Policy, Preference
from nstance.model.ids import ProviderId
from nstance.model.instance import Cause, Instance, State
from nstance.model.offer import CapacityScope, Exhaustion, Offer
from unit.core.core_situation import NOW, After, after, desired, member, name, observation, replacement

MARKETS, TYPES, SUBNETS = ("spot", "on-demand"), ("m7", "m6"), ("s1", "s2")
ASKED = observation(last_seen=0.0, own_intent=True, creating=True)
UNCERTAIN = observation(last_seen=0.0, own_intent=True, creating=True, create_attempts=1)


def group(size: int = 1, **fields: Any) -> Group:
    return desired(size, **{"markets": MARKETS, "instance_types": TYPES, "subnets": SUBNETS} | fields)


def on(offer: Offer, letter: str = "a", state: State = State.PENDING, **fields: Any) -> Instance:
    market, kind, subnet = offer
    known = {"created": NOW - 10.0} if state is State.PENDING else {}
    return member(letter, state, market=market, instance_type=kind, subnet=subnet, **known | fields)


def exhausted(*found: tuple[Offer, CapacityScope], until: float = NOW + 60.0) -> dict[Any, Exhaustion]:
    return {offers.capacity_key(offer, scope, "h"): Exhaustion(until, 1, "full") for offer, scope in found}


def refused(offer: Offer, scope: CapacityScope, desired: Group, **fields: Any) -> After:
    event = ev.VmCreateFailed(name("a"), Failure.NO_CAPACITY, "no room", scope)
    return after([on(offer)], event, group=desired, **{"observed": {"a": ASKED}} | fields)


def offer_of(follows: After, letter: str = "a") -> Offer:
    return offers.offer_of(follows[letter])


FIRST = Offer("spot", "m7", "s1")
ALL = [Offer(market, kind, subnet) for market in MARKETS for kind in TYPES for subnet in SUBNETS]


# ---- the memory


OFFERS = st.builds(
    Offer, st.sampled_from(("", *MARKETS)), st.sampled_from(("", *TYPES)), st.sampled_from(("", *SUBNETS))
)
REVISIONS = st.sampled_from(("r1", "r2"))
SCOPES = st.sampled_from(CapacityScope)


@given(OFFERS, SCOPES, REVISIONS, st.floats(0, 100))
def test_what_is_marked_is_what_is_skipped(offer: Offer, scope: CapacityScope, revision: str, age: float) -> None:
    """Whatever the scope, the offer that was refused is not chosen before its time, and is afterwards."""
    key = offers.capacity_key(offer, scope, revision)
    marked = offers.mark_exhausted({}, key, "full", now=0.0, retry=50.0)
    known = offers.find_exhaustion(marked, offer, revision, age)
    assert (known is not None) == (age < 50.0)
    only = desired(
        1,
        infra_hash=revision,
        markets=(offer.market,) if offer.market else (),
        instance_types=(offer.instance_type,) if offer.instance_type else (),
        subnets=(offer.subnet,) if offer.subnet else (),
    )
    chosen = offers.choose_offer(only, marked, now=age, used={})
    assert chosen == (None if age < 50.0 else offer)
    assert bool(offers.explain_blocked(only, marked, age)) == (age < 50.0)
    assert (
        offers.find_exhaustion(offers.mark_available(marked, offer, revision, asked=0.0), offer, revision, age) is None
    )


@given(OFFERS, OFFERS, SCOPES, REVISIONS, REVISIONS)
def test_nothing_else_is_skipped(
    offer: Offer, other: Offer, scope: CapacityScope, revision: str, other_revision: str
) -> None:
    """Stated again, independently of the keys: what a refusal with a scope rules out."""
    same = [mine == theirs for mine, theirs in zip(offer, other, strict=True)]
    market, kind, subnet = same
    as_args_say = revision == other_revision
    match scope:
        case CapacityScope.QUOTA:
            ruled_out = True
        case CapacityScope.TYPE_QUOTA:
            ruled_out = market and kind and (bool(offer.market and offer.instance_type) or as_args_say)
        case CapacityScope.MARKET:
            ruled_out = market and (bool(offer.market) or as_args_say)
        case CapacityScope.INSTANCE_TYPE if offer.instance_type:
            ruled_out = kind
        case CapacityScope.SUBNET if offer.subnet:
            ruled_out = subnet
        case CapacityScope.HOST:
            ruled_out = kind and as_args_say
        case _:
            ruled_out = all(same) and (all(offer) or as_args_say)
    marked = offers.mark_exhausted({}, offers.capacity_key(offer, scope, revision), "full", now=0.0, retry=50.0)
    assert (offers.find_exhaustion(marked, other, other_revision, 0.0) is not None) == ruled_out


def test_the_wait_grows_and_success_ends_it() -> None:
    key, known, now, waits = offers.capacity_key(FIRST, CapacityScope.OFFER, "h"), {}, 0.0, []
    for _ in range(7):
        known = offers.mark_exhausted(known, key, "full", now=now, retry=180.0)  # type: ignore[assignment]
        waits.append(known[key].until - now)
        again = offers.mark_exhausted(known, key, "again", now=now + 1.0, retry=180.0)  # sent with the first
        assert again[key] == replace(known[key], until=max(known[key].until, now + 181.0), since=now + 1.0)
        now = known[key].until
    assert waits == [180.0, 360.0, 720.0, 1440.0, 1800.0, 1800.0, 1800.0]
    assert offers.mark_available(known, FIRST, "h", asked=now) == {}
    assert offers.mark_available(known, FIRST, "h", asked=known[key].since - 1.0) is known  # sent before the refusal
    other = offers.capacity_key(ALL[1], CapacityScope.OFFER, "h")
    later = offers.mark_exhausted(known, other, "full", now=now + offers.FORGET_SECONDS, retry=180.0)
    assert set(later) == {other}  # what nobody asked about again is forgotten


def test_the_end_of_a_vm_makes_room_in_its_subnet_and_quota_only() -> None:
    known = exhausted(*((FIRST, scope) for scope in CapacityScope if scope is not CapacityScope.HOST))
    left = offers.mark_freed(known, FIRST, "h")
    assert {key.scope for key in left} == {CapacityScope.OFFER, CapacityScope.MARKET, CapacityScope.INSTANCE_TYPE}
    quotas = {offers.capacity_key(FIRST, scope, "h") for scope in (CapacityScope.TYPE_QUOTA, CapacityScope.QUOTA)}
    assert offers.mark_freed(known, Offer("spot", "m6", "s2"), "h").keys() == known.keys() - quotas  # of its family
    assert offers.mark_freed(known, Offer("on-demand", "m7", "s2"), "h").keys() == known.keys() - {
        offers.capacity_key(FIRST, CapacityScope.QUOTA, "h")
    }


def test_the_end_of_any_vm_makes_room_on_the_hosts() -> None:
    """Its memory and disk serve every size and every network."""
    known = exhausted(
        (FIRST, CapacityScope.HOST), (Offer("", "m6", ""), CapacityScope.HOST), (FIRST, CapacityScope.OFFER)
    )
    assert {key.scope for key in offers.mark_freed(known, Offer("", "small", ""), "other")} == {CapacityScope.OFFER}


# ---- the choice


def test_the_preferred_offers_are_filled_evenly() -> None:
    follows = after([on(FIRST, "a", State.RUNNING)], group=group(4))
    assert sorted((m.market, m.instance_type, m.subnet) for m in follows.made) == [
        ("spot", "m7", "s1"),
        ("spot", "m7", "s2"),
        ("spot", "m7", "s2"),
    ]


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        pytest.param([(FIRST, CapacityScope.OFFER)], Offer("spot", "m7", "s2"), id="another subnet"),
        pytest.param([(FIRST, CapacityScope.SUBNET)], Offer("spot", "m7", "s2"), id="a full subnet"),
        pytest.param([(FIRST, CapacityScope.HOST)], Offer("spot", "m6", "s1"), id="full hosts"),
        pytest.param([(FIRST, CapacityScope.INSTANCE_TYPE)], Offer("spot", "m6", "s1"), id="another type"),
        pytest.param([(FIRST, CapacityScope.MARKET)], Offer("on-demand", "m7", "s1"), id="another market"),
        pytest.param([(o, CapacityScope.OFFER) for o in ALL[:4]], Offer("on-demand", "m7", "s1"), id="no spot left"),
        pytest.param([(o, CapacityScope.OFFER) for o in ALL[:7]], ALL[7], id="the last one"),
        pytest.param(
            [(FIRST, CapacityScope.TYPE_QUOTA)], Offer("spot", "m6", "s1"), id="another type has its own quota"
        ),
        pytest.param([(FIRST, CapacityScope.QUOTA)], None, id="a quota: no other offer helps"),
        pytest.param([(o, CapacityScope.OFFER) for o in ALL], None, id="nothing left"),
    ],
)
def test_the_next_offer(found: list[tuple[Offer, CapacityScope]], chosen: Offer | None) -> None:
    follows = after([], group=group(), exhausted=exhausted(*found))
    assert [offers.offer_of(m) for m in follows.made] == ([chosen] if chosen else [])
    if chosen is None:
        assert (follows.decision.wake_at, follows.codes()) == (NOW + 60.0, {"blocked"})
        assert "full" in follows.decision.trend.last_error
        again = after([], group=group(), exhausted=exhausted(*found), trend=follows.decision.trend)
        assert again.codes() == set()  # said once


def test_the_event_says_what_was_chosen_and_why() -> None:
    (preferred,) = after([], group=group()).decision.reasons
    assert preferred.message.endswith("; spot m7 in s1, as preferred")
    (fallback,) = after([], group=group(), exhausted=exhausted((FIRST, CapacityScope.MARKET))).decision.reasons
    assert "; on-demand m7 in s1, because of no capacity in spot m7 in s1: full" in fallback.message


# ---- fallback


@pytest.mark.parametrize(
    ("scope", "following"),
    [
        (CapacityScope.OFFER, Offer("spot", "m7", "s2")),
        (CapacityScope.SUBNET, Offer("spot", "m7", "s2")),
        (CapacityScope.INSTANCE_TYPE, Offer("spot", "m6", "s1")),
        (CapacityScope.MARKET, Offer("on-demand", "m7", "s1")),
    ],
)
def test_a_refusal_leads_to_the_next_offer_in_the_same_decision(scope: CapacityScope, following: Offer) -> None:
    follows = refused(FIRST, scope, group())
    assert (offer_of(follows), follows["a"].state) == (following, State.PENDING)
    assert follows.effects(CreateVm) == "a"
    assert follows.made == []
    assert follows.decision.trend.failures == 0  # the next offer does not wait for the group's back-off
    assert follows["a"].request_hash == ""


def test_an_earlier_call_without_an_answer_needs_a_new_id() -> None:
    """It may still create a VM in the first offer."""
    follows = refused(FIRST, CapacityScope.OFFER, group(), observed={"a": UNCERTAIN})
    assert (offer_of(follows), follows["a"].state) == (FIRST, State.DELETING)
    assert [offers.offer_of(m) for m in follows.made] == [Offer("spot", "m7", "s2")]


def test_a_quota_ends_the_attempt_and_the_group_waits() -> None:
    follows = refused(FIRST, CapacityScope.QUOTA, group())
    assert follows["a"].state is State.FAILED
    assert (follows.made, follows.decision.wake_at) == ([], NOW + 180.0)
    assert follows.codes() == {"refused", "blocked"}


def test_a_call_that_was_not_sent_marks_nothing() -> None:
    known = exhausted((FIRST, CapacityScope.OFFER))
    event = ev.VmCreateFailed(name("a"), Failure.SKIPPED, "refused meanwhile")
    follows = after([on(FIRST)], event, group=group(), observed={"a": ASKED}, exhausted=known)
    assert (offer_of(follows), follows.decision.exhausted) == (Offer("spot", "m7", "s2"), None)


@pytest.mark.parametrize(
    ("calls", "remembered"),
    [
        pytest.param(ASKED, 0, id="created now"),
        pytest.param(UNCERTAIN, 1, id="perhaps the VM of an earlier call"),
        pytest.param(observation(last_seen=0.0, creating=True), 1, id="perhaps the VM of an earlier leader"),
    ],
)
def test_a_created_vm_shows_that_there_is_capacity(calls: Any, remembered: int) -> None:
    created = ev.VmCreated(name("a"), "i-1")  # type: ignore[arg-type]
    known = exhausted((FIRST, CapacityScope.OFFER), until=NOW - 1.0)
    follows = after([on(FIRST)], created, group=group(), observed={"a": calls}, exhausted=known)
    assert len(known if follows.decision.exhausted is None else follows.decision.exhausted) == remembered


@pytest.mark.parametrize("failure", [Failure.UNAVAILABLE, Failure.UNKNOWN])
def test_the_third_server_error_counts_against_the_offer(failure: Failure) -> None:
    event = ev.VmCreateFailed(name("a"), failure, "503", CapacityScope.OFFER)
    observed = observation(last_seen=0.0, own_intent=True, creating=True, create_attempts=1, server_errors=1)
    second = after([on(FIRST)], event, group=group(), observed={"a": observed})
    assert (second.decision.exhausted, second["a"].state) == (None, State.PENDING)
    third = after([on(FIRST)], event, group=group(), observed={"a": second.observation("a")})
    assert third["a"].state is State.DELETING  # its VM may exist
    assert [offers.offer_of(m) for m in third.made] == [Offer("spot", "m7", "s2")]
    (known,) = (third.decision.exhausted or {}).values()
    assert known.is_error


def test_while_the_provider_is_away_attempts_do_not_pile_up() -> None:
    """Each one that is left has an unknown outcome until the provider answers again."""
    event = ev.VmCreateFailed(name("a"), Failure.UNAVAILABLE, "503", CapacityScope.OFFER)
    observed = observation(last_seen=0.0, own_intent=True, creating=True, create_attempts=5, server_errors=5)
    left = replace(on(Offer("spot", "m7", "s2"), "b", State.DELETING), provider_id=None)
    follows = after([on(FIRST), left], event, group=group(), observed={"a": observed})
    assert (follows["a"].state, follows.made, follows.decision.exhausted) == (State.PENDING, [], None)
    found = replace(left, provider_id=ProviderId("i-1"))  # a VM that is being deleted, and nothing unknown
    assert after([on(FIRST), found], event, group=group(), observed={"a": observed})["a"].state is State.DELETING


def test_server_errors_do_not_leave_the_last_offer() -> None:
    event = ev.VmCreateFailed(name("a"), Failure.UNAVAILABLE, "503", CapacityScope.OFFER)
    observed = observation(last_seen=0.0, own_intent=True, creating=True, create_attempts=5, server_errors=5)
    known = exhausted(*((o, CapacityScope.OFFER) for o in ALL[1:]))
    follows = after([on(FIRST)], event, group=group(), observed={"a": observed}, exhausted=known)
    assert (follows["a"].state, follows.decision.exhausted) == (State.PENDING, None)


def test_an_offer_that_fails_is_the_last_resort() -> None:
    key = offers.capacity_key(FIRST, CapacityScope.OFFER, "h")
    failing = offers.mark_failing({}, key, "503", now=NOW, retry=60.0)
    assert offers.choose_offer(group(), failing, now=NOW, used={}) == Offer("spot", "m7", "s2")
    only = group(markets=("spot",), instance_types=("m7",), subnets=("s1",))
    assert offers.choose_offer(only, failing, now=NOW, used={}) == FIRST
    assert offers.explain_blocked(only, failing, NOW) == ""


def test_throttling_says_nothing_about_the_offer() -> None:
    event = ev.VmCreateFailed(name("a"), Failure.UNAVAILABLE, "throttled")
    observed = observation(last_seen=0.0, own_intent=True, creating=True, create_attempts=5, server_errors=2)
    follows = after([on(FIRST)], event, group=group(), observed={"a": observed})
    assert (follows["a"].state, follows.decision.exhausted) == (State.PENDING, None)
    assert follows.observation("a").calls.server_errors == 2


# ---- on-demand instances


def test_a_requested_type_is_kept_and_the_market_may_change() -> None:
    wanted = ev.InstanceRequested(id=name("d"), instance_type="big")
    known = exhausted((Offer("spot", "big", "s1"), CapacityScope.MARKET))
    follows = after([], wanted, group=group(0), exhausted=known)
    assert offer_of(follows, "d") == Offer("on-demand", "big", "s1")
    event = ev.VmCreateFailed(name("d"), Failure.NO_CAPACITY, "no room", CapacityScope.INSTANCE_TYPE)
    ended = after([follows["d"]], event, group=group(0), observed={"d": ASKED}, exhausted=known)
    assert ended["d"].state is State.FAILED


def test_a_request_without_any_capacity_is_rejected() -> None:
    wanted = ev.InstanceRequested(id=name("d"))
    follows = after([], wanted, group=group(0), exhausted=exhausted((FIRST, CapacityScope.QUOTA)))
    assert (follows.made, dict(follows.decision.rejections)) == ([], {0: Rejection.NO_CAPACITY})


# ---- preference


WORSE, BETTER = Offer("on-demand", "m6", "s1"), Offer("spot", "m6", "s1")
STRICT = {"prefer": Preference.STRICT}


@pytest.mark.parametrize(
    ("fields", "known", "made"),
    [
        pytest.param({}, {}, 0, id="loose: it stays"),
        pytest.param(STRICT, {}, 1, id="strict: the replacement is created first"),
        pytest.param(STRICT, exhausted((FIRST, CapacityScope.QUOTA)), 0, id="strict: not while nothing better is left"),
        pytest.param(STRICT | {"max_surge": 0, "max_unavailable": 1}, {}, 0, id="never by removing it first"),
    ],
)
def test_strict_preference_is_a_voluntary_rotation(fields: Any, known: Any, made: int) -> None:
    old = on(WORSE, "a", State.RUNNING)
    follows = after([old], group=group(**fields), exhausted=known)
    assert [(m.replaces, m.replaces_for) for m in follows.made] == [(old.id, Cause.PREFERENCE)] * made
    assert follows["a"].state is State.RUNNING


def test_a_better_replacement_is_kept_when_its_offer_is_exhausted_again() -> None:
    old = on(WORSE, "a", State.RUNNING)
    new = replace(replacement("n", "a", Cause.PREFERENCE), market="spot", instance_type="m7", subnet="s1")
    known = exhausted((FIRST, CapacityScope.MARKET), (Offer("", "m7", ""), CapacityScope.INSTANCE_TYPE))
    follows = after([old, new], group=group(**STRICT), exhausted=known)
    assert follows["n"].state is State.RUNNING
    assert follows["a"].state is not State.RUNNING
    assert follows["a"].cause is Cause.PREFERENCE


def test_no_instance_leaves_for_a_better_offer_when_its_replacement_is_in_none() -> None:
    """It was created because of the age, while the better offer was exhausted."""
    old = on(WORSE, "a", State.RUNNING)
    new = replace(replacement("n", "a", Cause.ELIGIBLE_EXPIRY), market="on-demand", instance_type="m6", subnet="s1")
    follows = after([old, new], group=group(**STRICT), policy=Policy(eligible_age=0.0))
    assert follows["a"].cause is Cause.ELIGIBLE_EXPIRY


def test_a_voluntary_replacement_does_not_fall_back_to_what_is_there_already() -> None:
    old = on(BETTER, "a", State.RUNNING)
    new = on(FIRST, "n", replaces=old.id, replaces_for=Cause.PREFERENCE)
    event = ev.VmCreateFailed(new.id, Failure.NO_CAPACITY, "no room", CapacityScope.INSTANCE_TYPE)
    follows = after([old, new], event, group=group(**STRICT), observed={"n": ASKED})
    assert (follows["n"].state, follows["a"].state) == (State.FAILED, State.RUNNING)
    assert (follows.made, follows.decision.trend) == ([], Trend())
