"""Defects of expiry and of the checks that agents run."""

from sim.mutants.mutant import Mutant

FALLBACK = ("tests/unit/core/test_core_fallback.py",)

EXPIRY_AND_CHECKS: tuple[Mutant, ...] = (
    Mutant(
        "forced-expiry-ignores-limits",
        "nstance.core.rotation",
        "    surge = max_surge(desired) - (draft.count_existing() - desired.size)\n",
        "    surge = len(draft.members) if causes is _FORCED else max_surge(desired) - draft.count_existing() + desired.size\n",
        "a group that was created at once is replaced at once",
        seeds=(39,),
    ),
    Mutant(
        "forced-expiry-ignores-order",
        "nstance.core.rotation",
        "            steps, started = _allowed_steps(draft, desired, member, causes), True\n",
        "            steps = len(draft.members) if causes is _FORCED else _allowed_steps(draft, desired, member, causes)\n"
        "            started = True\n",
        "several members of a quorum expire at once",
        seeds=(125,),
    ),
    Mutant(
        "expired-place-filled-early",
        "nstance.core.rotation",
        "    return instance.cause in replacing.LIMITED\n",
        "    return instance.cause in replacing.VOLUNTARY\n",
        "the place of one that expired is filled while its VM still drains",
        seeds=(39,),
    ),
    Mutant(
        "expired-too-early",
        "nstance.core.replacing",
        "draft.is_due(instance.created + age)",
        "draft.is_due(instance.created + age / 2)",
        "instances leave before they are too old",
        seeds=(9,),
    ),
    Mutant(
        "forced-expiry-waits-for-a-person",
        "nstance.core.rollout",
        "    if cause is Cause.FORCED_EXPIRY:\n        return True\n",
        "",
        "a halted rollout keeps instances alive that must not get older",
        tests=FALLBACK,
    ),
    Mutant(
        "checks-without-a-result-pass",
        "nstance.core.readiness",
        "        pending=tuple(name for name in names if name not in results),\n",
        "        pending=(),\n",
        "an old instance goes for one whose checks have not run yet",
        seeds=(4,),
    ),
    Mutant(
        "old-instances-get-new-checks",
        "nstance.server.leader.readiness",
        "        resolved = self.vm_requests.resolve(instance) if instance is not None else None\n"
        "        known = presence.checks_sent\n",
        "        groups = self.vm_requests.active_config.configuration.groups\n"
        "        resolved = groups.get(instance.key) if instance is not None else None\n"
        "        known = presence.checks_sent\n",
        "a rollout makes all old instances fail checks of a service that they do not have",
        seeds=(4,),
    ),
    Mutant(
        "unhealthy-at-the-first-failure",
        "nstance.core.triage",
        "agent.failing_since + limits.unhealthy_after",
        "agent.failing_since",
        "one failed check costs a healthy instance its place",
        seeds=(94,),
    ),
)
