"""Defects of readiness, rollouts and rollbacks."""

from sim.mutants.mutant import Mutant

ROLLOUT = ("tests/unit/core/test_core_rollout.py",)
READINESS = ("tests/unit/core/test_core_readiness.py",)
RESOLVE = ("tests/unit/config/test_config_rollback.py",)

ROLLOUTS: tuple[Mutant, ...] = (
    Mutant(
        "limit-ignores-draining",
        "nstance.core.draft",
        "return self.triage.existing + sum(not m.on_demand and not is_ended(m) for m in self.needs_attention())",
        "return self.triage.existing + sum(m.counts for m in self.needs_attention())",
        "instances that drain or are being deleted do not count: all old ones leave at once",
    ),
    Mutant(
        "place-filled-before-it-is-free",
        "nstance.core.scaling",
        "    missing = max(0, missing - rotation.count_occupied_places(draft))\n",
        "",
        "the replacement of one that left first is made before that is gone",
    ),
    Mutant(
        "finish-without-ready",
        "nstance.core.replacing",
        "if (_has_vm(m) if forced else _can_take_over(draft, m))",
        "if _has_vm(m)",
        "an old instance goes for one that has no files yet",
    ),
    Mutant(
        "registered-is-ready",
        "nstance.core.draft",
        "        return agent.ready and agent.connected\n",
        "        return agent.connected\n",
        "an instance counts as ready as soon as its agent is connected",
    ),
    Mutant(
        "serial-ignores-settle",
        "nstance.core.rotation",
        "        settled = draft.observation(member.id).agent.ready_since + desired.settle\n",
        "        settled = draft.observation(member.id).agent.ready_since\n",
        "the next member of a quorum goes before the new one has settled",
    ),
    Mutant(
        "serial-is-parallel",
        "nstance.core.rotation",
        "    if desired.order is UpdateOrder.PARALLEL:\n",
        "    if True:\n",
        "several members of a quorum are replaced at once",
    ),
    Mutant(
        "halt-ignored",
        "nstance.core.rollout",
        "or (current is not None and current.outcome in HELD)",
        "or False",
        "a halted rollout begins another replacement",
    ),
    Mutant(
        "halted-rollout-finishes",
        "nstance.core.rollout",
        "    if current is not None and current.outcome is Outcome.HALTED:\n        return False\n",
        "",
        "another old instance goes although the rollout is halted",
        tests=ROLLOUT,
    ),
    Mutant(
        "failures-not-counted",
        "nstance.core.rollout",
        "failures=failures, message",
        "message",
        "a revision whose instances never become ready is never halted",
        tests=ROLLOUT,
    ),
    Mutant(
        "canary-does-not-pause",
        "nstance.core.rollout",
        "    return max(0, desired.canary - updated) if updated < len(capacity) else None\n",
        "    return None\n",
        "all instances are replaced although only one was to be tried",
    ),
    Mutant(
        "ready-timeout-ignored",
        "nstance.core.triage",
        "    if member.ready_at is None and member.registered is not None:\n",
        "    if False:\n",
        "an instance that never becomes ready stays for ever",
    ),
    Mutant(
        "blocked-is-replaced",
        "nstance.core.readiness",
        "    if agent.ready or agent.blocked or",
        "    if agent.ready or",
        "instances whose files cannot be made are replaced by others that get none either",
        tests=READINESS,
    ),
    Mutant(
        "balancer-takes-the-unready",
        "nstance.server.leader.readiness",
        "self._on_ready(presence.id, found.ready)",
        "self._on_ready(presence.id, True)",
        "requests are sent to an instance without files",
    ),
    Mutant(
        "rollback-to-the-wrong-revision",
        "nstance.model.rollout",
        "if r.outcome is Outcome.COMPLETE and current is not None",
        "if current is not None",
        "a group is rolled back to a revision that never worked",
        tests=ROLLOUT,
    ),
    Mutant(
        "rollback-outlives-the-change",
        "nstance.config.resolve",
        "    if rollback is not None and rollback.instead_of != configured.infra_hash:\n",
        "    if False:\n",
        "a corrected configuration has no effect, because an old rollback still counts",
        tests=RESOLVE,
    ),
    Mutant(
        "group-record-not-committed",
        "nstance.server.state.shard",
        "        records = (decision.record,) if decision.record is not None else ()\n",
        "        records = ()\n",
        "the next leader does not know that a rollout was halted",
    ),
    Mutant(
        "mass-silence-does-not-stop-rollouts",
        "nstance.core.rollout",
        "    return not draft.view.mass_silence and not draft.view.mass_absence\n",
        "    return True\n",
        "a rollout goes on while most agents are silent",
        tests=ROLLOUT,
    ),
    Mutant(
        "rollout-before-its-revision-is-stored",
        "nstance.core.rollout",
        " or not draft.view.revision_stored or",
        " or",
        "a rollout begins although nobody could return to its revision later",
        tests=ROLLOUT,
    ),
)
