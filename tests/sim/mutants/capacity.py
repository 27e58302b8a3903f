"""Defects of the fallback to other offers."""

from sim.mutants.mutant import Mutant

OFFERS = ("tests/unit/core/test_core_offers.py",)

CAPACITY: tuple[Mutant, ...] = (
    Mutant(
        "another-offer-after-an-unknown-outcome",
        "nstance.core.creating",
        "    if calls.create_attempts or not calls.own_intent:\n        # An earlier call with this ID may still create",
        "    if False:\n        # An earlier call with this ID may still create",
        "an earlier call makes a VM in the first offer, and the next one a second VM with the same ID",
    ),
    Mutant(
        "refusals-forgotten",
        "nstance.server.state.offer_memory",
        "        self.exhausted = exhausted\n        return freed\n",
        "        return freed\n",
        "an offer without capacity is tried by every instance",
    ),
    Mutant(
        "waiting-calls-sent-anyway",
        "nstance.server.cloud.effects",
        "and (may_exist or not context.is_exhausted(instance))",
        "and True",
        "calls that waited for their turn are sent to an offer that was refused meanwhile",
    ),
    Mutant(
        "no-fallback",
        "nstance.core.creating",
        "    following = _choose_next(draft, group, instance) if group is not None else None\n",
        "    following = None\n",
        "an instance fails although another offer has capacity",
    ),
    Mutant(
        "parts-checked-one-by-one",
        "nstance.core.offers",
        '            return CapacityKey(CapacityScope.OFFER, *offer, "" if all(offer) else revision)\n',
        "            return CapacityKey(CapacityScope.OFFER, market=offer.market, revision=revision)\n",
        "one refused offer rules out its whole market",
        tests=OFFERS,
    ),
    Mutant(
        "arguments-of-other-groups",
        "nstance.core.offers",
        '*offer, "" if all(offer) else revision)',
        "*offer)",
        "a group whose arguments ask for spot VMs blocks one whose arguments do not",
        tests=OFFERS,
    ),
    Mutant(
        "a-success-from-before-the-refusal",
        "nstance.core.offers",
        "if key in exhausted and exhausted[key].since <= asked}",
        "if key in exhausted}",
        "the answer to an earlier call makes the leader try an exhausted offer again",
        tests=OFFERS,
    ),
    Mutant(
        "throttling-counts",
        "nstance.core.creating",
        "            if event.scope is not None:\n",
        "            if True:\n",
        "throttling makes a group leave its preferred offer",
        tests=OFFERS,
    ),
    Mutant(
        "preference-without-a-better-offer",
        "nstance.core.creating",
        "    return offers.better_pairs(desired, old) if old is not None else None\n",
        "    return None\n",
        "an instance is replaced by one on the same or a worse offer",
        tests=OFFERS,
    ),
    Mutant(
        "preference-removes-first",
        "nstance.core.rotation",
        "        elif cause is Cause.PREFERENCE:\n",
        "        elif False:\n",
        "a healthy instance goes for an offer that may have no capacity",
        tests=OFFERS,
    ),
    Mutant(
        "the-wait-does-not-grow",
        "nstance.core.offers",
        "        times = known.times + 1\n",
        "        times = 1\n",
        "a cloud without capacity is asked every three minutes for hours",
        tests=OFFERS,
    ),
    Mutant(
        "a-full-host-stays-full",
        "nstance.core.offers",
        "    return _without(exhausted, ours | {key for key in exhausted if key.scope is CapacityScope.HOST})\n",
        "    return _without(exhausted, ours)\n",
        "a group waits for minutes although memory of the host is free again",
        tests=OFFERS,
    ),
    Mutant(
        "fallback-waits-for-its-back-off",
        "nstance.core.creating",
        "calls=replace(calls, create_due=draft.now, server_errors=0))",
        "calls=replace(calls, create_due=draft.now + 30.0, server_errors=0))",
        "the next offer is not tried in the same decision",
        tests=OFFERS,
    ),
)
