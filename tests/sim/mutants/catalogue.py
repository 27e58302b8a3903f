"""The defects: where, what instead of what, and why it would hurt. `seeds` are known to find it; `tests` name who else does
where no seed can."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    module: str
    old: str
    new: str
    why: str
    seeds: tuple[int, ...] = ()
    tests: tuple[str, ...] = ()


JOURNAL_TESTS = ("tests/unit/objects/test_journal.py", "tests/unit/objects/test_journal_epochs.py")
PROMISES = ("tests/unit/server/test_promises.py",)
FINDINGS = ("tests/sim/test_sim_findings.py",)
COLLECTING_TESTS = ("tests/unit/core/test_core_collecting.py",)

CATALOGUE: tuple[Mutant, ...] = (
    # ---- journal
    Mutant(
        "no-fence",
        "nstance.objects.journal",
        "                await self._append([])\n                break\n",
        "                break\n",
        "a new leader writes no fence: an old one goes on",
        tests=JOURNAL_TESTS,
    ),
    Mutant(
        "fence-ignores-epochs",
        "nstance.objects.journal",
        "if epoch > self._epoch or (other and epoch == self._epoch):",
        "if False:",
        "a leader fences although a newer one has written",
        tests=JOURNAL_TESTS,
    ),
    Mutant(
        "replay-ignores-epochs",
        "nstance.objects.journal",
        "        if slot.epoch < self.epoch:\n",
        "        if False:\n",
        "a slot of an older leader behind a newer one's is taken",
        tests=JOURNAL_TESTS,
    ),
    Mutant(
        "acknowledged-before-durable",
        "nstance.objects.journal",
        "                    await points.reach(points.Point.BEFORE_COMMIT)\n",
        "                    await points.reach(points.Point.BEFORE_COMMIT)\n"
        "                    for _, early in taken:\n                        early.done() or early.set_result(None)\n",
        "decisions count as durable before they are written",
    ),
    Mutant(
        "overtaken-goes-on",
        "nstance.objects.journal",
        "                        self._deposed_by(overtaken)\n",
        "                        pass\n",
        "a refused write is taken for a success",
    ),
    Mutant(
        "snapshot-forgets",
        "nstance.objects.journal",
        "            instances=dict(book.instances),\n",
        "            instances=dict(list(book.instances.items())[1:]),\n",
        "a snapshot lacks an instance",
    ),
    Mutant(
        "compaction-eats-the-end",
        "nstance.objects.journal",
        "            if number >= horizon:\n                break\n            await self._guard()\n"
        "            await self._journal.store.delete(self._journal.slot_key(number))",
        "            await self._guard()\n            await self._journal.store.delete(self._journal.slot_key(number))",
        "compaction removes slots that no snapshot holds",
    ),
    Mutant(
        "old-copy-is-led-on",
        "nstance.server.follower",
        "        return self._clock.boot() - self._read_at > journal.KEEP_SECONDS / 2\n",
        "        return False\n",
        "a standby leads from a copy whose next slots were removed",
        tests=FINDINGS,
    ),
    # ---- storage
    Mutant(
        "unknown-is-success",
        "nstance.objects.settle",
        "if found is not None and (found.body == body if op is None else operation(found.body) == op):",
        "if found is not None:",
        "whatever is read back counts as our own write",
    ),
    Mutant(
        "no-read-back",
        "nstance.objects.settle",
        "if found is not None and (found.body == body if op is None else operation(found.body) == op):",
        "if False:",
        "a write whose answer was lost is taken for somebody else's",
        tests=JOURNAL_TESTS,
    ),
    Mutant(
        "error-is-absence-in-storage",
        "nstance.objects.journal",
        "            except errors.Missing:\n                return None\n",
        "            except (errors.Missing, errors.Unavailable):\n                return None\n",
        "a slot that cannot be read counts as missing",
    ),
    # ---- leadership
    Mutant(
        "wall-clock-lease",
        "nstance.server.term",
        "self._clock.monotonic() < self._until",
        "self._clock.wall() - 1.7e9 < self._until",
        "the lease is measured by a clock that people set",
    ),
    Mutant(
        "holder-counts-longer",
        "nstance.core.election",
        "    limit = sent + length\n",
        "    limit = sent + length + 20.0\n    members = ()\n",
        "a holder acts beyond the end of its lease",
    ),
    Mutant(
        "impatient-candidate",
        "nstance.core.election",
        "    return (promise if member else length) * STRETCH + MARGIN\n",
        "    return 0.1\n",
        "a candidate takes a lease that is still held",
    ),
    Mutant(
        "promise-kept-short",
        "nstance.core.election",
        "    return received + promise * STRETCH + MARGIN\n",
        "    return received + promise * 0.2\n",
        "a standby moves before its promise is over",
    ),
    Mutant(
        "promise-of-any-epoch",
        "nstance.server.holder",
        "            case peers.Promise() if message.epoch == self.term.epoch:\n",
        "            case peers.Promise():\n",
        "a promise to an older term carries a newer one",
        tests=PROMISES,
    ),
    Mutant(
        "promise-while-claiming",
        "nstance.server.standby",
        "                if self.claiming:\n                    return False\n",
        "",
        "a standby promises to keep still while it takes the lease",
        tests=PROMISES,
    ),
    Mutant(
        "pending-renewal-forgotten",
        "nstance.server.holder",
        "            until = min(until, self._until(*self._pending))\n",
        "            pass\n",
        "a renewal on its way may name fewer promises than counted",
        tests=PROMISES,
    ),
    Mutant(
        "effects-without-a-term",
        "nstance.server.effects",
        "            await self._pace.wait()\n            await self._term.ready()\n",
        "            await self._pace.wait()\n",
        "the provider is called by a server that no longer leads",
    ),
    Mutant(
        "frozen-leader-keeps-agents",
        "nstance.server.holder",
        "FROZEN_MOST = 5.0",
        "FROZEN_MOST = 1e9",
        "agents stay with a leader that is cut off from storage",
        tests=FINDINGS,
    ),
    Mutant(
        "ports-stay-open",
        "nstance.server.reign",
        "            await _to_the_end(\n",
        "            await (lambda work: work)(\n",
        "a deposed leader goes on to talk to its agents",
        tests=FINDINGS,
    ),
    # ---- decide, commit, act
    Mutant(
        "effect-before-commit",
        "nstance.server.shard",
        "        if barrier is None:\n",
        "        if True:\n",
        "VMs are made and deleted before that is in the journal",
    ),
    Mutant(
        "answer-before-commit",
        "nstance.server.shard",
        "        return await answer\n",
        "        await asyncio.sleep(0.001)\n        return answer.result() if answer.done() else None\n",
        "an agent gets a certificate that the journal does not know",
    ),
    Mutant(
        "request-not-repeated-as-it-was",
        "nstance.server.effects",
        "if instance.request_hash and request_hash(request) != instance.request_hash:",
        "if False:",
        "a create is repeated with another request",
    ),
    Mutant(
        "another-subnet-too-early",
        "nstance.core.creating",
        "    if draft.facts(instance.id).create_attempts or instance.created < draft.view.listening_since:\n",
        "    if False:\n",
        "an ID is asked for elsewhere while an earlier call is under way",
        tests=FINDINGS,
    ),
    Mutant(
        "unknown-create-given-up",
        "nstance.core.creating",
        "        case ev.Failure.UNAVAILABLE | ev.Failure.UNKNOWN:\n",
        "        case ev.Failure.UNKNOWN:\n            give_up(draft, instance, event.message)\n"
        "        case ev.Failure.UNAVAILABLE:\n",
        "a create whose outcome is unknown gets a second ID",
    ),
    Mutant(
        "delete-races-create",
        "nstance.core.pursuing",
        "    if facts.creating:\n        return  # a create in flight",
        "    if False:\n        return  # a create in flight",
        "a delete overtakes the create of the same VM",
        tests=("tests/unit/core/test_core_deleting.py", "tests/unit/core/test_core_creating.py"),
    ),
    # ---- in doubt nothing is deleted
    Mutant(
        "deletes-before-the-listing",
        "nstance.core.draft",
        "        return self.view.listed and not self.view.mass_absence\n",
        "        return True\n",
        "a new leader deletes before it has seen what there is",
        tests=("tests/unit/core/test_core_deleting.py", "tests/unit/core/test_core_health.py"),
    ),
    Mutant(
        "list-error-is-empty",
        "nstance.server.collector",
        "            code = type(problem).__name__.lower()\n            raise\n",
        "            code = type(problem).__name__.lower()\n            vms = []\n",
        "a listing that failed reads as: there are no VMs",
        tests=FINDINGS,
    ),
    Mutant(
        "look-error-is-gone",
        "nstance.server.effects",
        "                self._post(ev.VmChecked(instance.id, ev.VmState.UNKNOWN))\n",
        "                self._post(ev.VmChecked(instance.id, ev.VmState.DELETED))\n",
        "a look that failed reads as: the VM is gone",
    ),
    Mutant(
        "absence-believed-at-once",
        "nstance.core.draft",
        "        return instance.seen or facts.vm_at >= facts.absent_since + ABSENCE_IS_TRUE_AFTER\n",
        "        return True\n",
        "a VM that the cloud does not show yet counts as gone",
    ),
    Mutant(
        "accepted-is-deleted",
        "nstance.core.observe",
        "    if event.final:\n",
        "    if True:\n",
        "a record closes although its VM may run on",
    ),
    Mutant(
        "absent-after-delete-is-true",
        "nstance.core.pursuing",
        "    return told >= max(since, begun) + ABSENCE_IS_TRUE_AFTER\n",
        "    return True\n",
        "not found just after a delete closes the record",
    ),
    Mutant(
        "suspect-without-the-provider",
        "nstance.core.health",
        "    if facts.vm is not VmState.RUNNING or facts.vm_at is None or facts.vm_at < facts.heard:\n",
        "    if facts.vm_at is None:\n        facts = draft.facts(instance.id)\n    if False:\n",
        "silence alone makes an instance suspect",
        tests=("tests/unit/core/test_core_health.py",),
    ),
    Mutant(
        "no-grace-after-failover",
        "nstance.core.health",
        "        patience = max(policy.suspect_after, draft.view.reconnect_grace)\n"
        "        return heard + patience, heard + max(policy.dead_after, patience)\n",
        "        return facts.heard, facts.heard + 1.0\n",
        "a new leader gives agents no time to come back",
    ),
    Mutant(
        "deaf-leader-blames-agents",
        "nstance.server.shard",
        "            self.listening_since = now\n        self._ticked = now\n",
        "        self._ticked = now\n",
        "a leader that stood still takes that for silence",
        tests=FINDINGS,
    ),
    Mutant(
        "last-byte-forgotten",
        "nstance.server.shard",
        "                    self._learn_heard(id, facts, self._clock.steady(), self._clock.monotonic())\n",
        "                    pass\n",
        "silence begins before the connection was lost",
        tests=FINDINGS,
    ),
    Mutant(
        "replacement-comes-second",
        "nstance.core.health",
        "    return any(m.state is not State.PENDING for m in draft.newcomers().get(instance.id, ()))\n",
        "    return True\n",
        "a VM that runs goes before its replacement was made",
    ),
    Mutant(
        "mass-silence-ignored",
        "nstance.core.silence",
        "    return silent >= AT_LEAST and silent * 3 > agents\n",
        "    return False\n",
        "a cut between us and the fleet replaces the fleet",
        tests=FINDINGS,
    ),
    Mutant(
        "strangers-are-orphans",
        "nstance.core.collecting",
        "    if vm.cluster != cluster or vm.shard != shard or vm.tenant is None or vm.group is None:\n        return\n",
        "",
        "VMs without our tags are deleted",
        tests=COLLECTING_TESTS,
    ),
    Mutant(
        "orphan-at-first-sight",
        "nstance.core.collecting",
        "SIGHTINGS = 2",
        "SIGHTINGS = 1",
        "one listing is enough to delete a VM",
        tests=COLLECTING_TESTS,
    ),
    Mutant(
        "orphans-stay",
        "nstance.core.collecting",
        "        found.add(GroupKey(vm.tenant, vm.group), OrphanFound(vm.id, vm.provider_id))\n",
        "",
        "VMs that no record knows are never collected",
    ),
    Mutant(
        "hidden-vms-stop-deletions",
        "nstance.server.collector",
        "            found_singly=self._found_singly(),\n",
        "",
        "a few stripped tags stop all deletions for good",
        tests=FINDINGS,
    ),
    Mutant(
        "double-takes-the-first",
        "nstance.server.effects",
        "self._provider.delete(instance.id, effect.provider_id)",
        "self._provider.delete(instance.id, None)",
        "deleting a double deletes the VM that is kept",
    ),
    # ---- groups
    Mutant(
        "draining-is-capacity",
        "nstance.core.draft",
        "    return (state is State.RUNNING or",
        "    return (state is State.DRAINING or state is State.RUNNING or",
        "what is about to go counts as if it stayed",
    ),
    Mutant(
        "pending-is-no-capacity",
        "nstance.core.draft",
        " or state is State.STARTING or state is State.PENDING)",
        " or state is State.STARTING)",
        "what is being made counts as missing: two are made",
    ),
    Mutant(
        "one-too-few",
        "nstance.core.scaling",
        "    while places > draft.size:\n",
        "    while places >= draft.size and places:\n",
        "scaling down goes one too far",
        tests=("tests/unit/core/test_core_scaling.py",),
    ),
    Mutant(
        "drains-never-end",
        "nstance.core.draining",
        "    if draft.now < drain.deadline and drain.waits:\n",
        "    if drain.waits:\n",
        "a drain that nobody acknowledges waits for ever",
        tests=("tests/unit/core/test_core_draining.py",),
    ),
    Mutant(
        "drains-cut-short",
        "nstance.core.draining",
        "    if draft.now < drain.deadline and drain.waits:\n",
        "    if False:\n",
        "workloads get no time to leave",
        tests=("tests/unit/core/test_core_draining.py",),
    ),
    Mutant(
        "nonce-for-two-keys",
        "nstance.core.observe",
        "        if instance.public_key != event.public_key:\n",
        "        if False:\n",
        "a spent nonce gives a second identity",
    ),
    Mutant(
        "unregistered-stay",
        "nstance.core.creating",
        "        if draft.now < due:\n            draft.wake(due)\n",
        "        if True:\n            draft.wake(due)\n",
        "a VM whose agent never registers is kept for ever",
    ),
    Mutant(
        "overtaken-look-counts",
        "nstance.core.observe",
        " and _has_been_shown_since(facts, event.asked):",
        " and False:",
        "a VM is gone because a look from before it was shown did not find it",
        tests=("tests/unit/core/test_core_health.py",),
    ),
    Mutant(
        "orphans-are-taken-up-again",
        "nstance.core.collecting",
        "found.sight(Oddity.LATE, record.id, before)",
        "found.sight(Oddity.ORPHAN, record.id, before)",
        "an orphan that was just deleted is taken up again because a listing lags",
        tests=COLLECTING_TESTS,
    ),
    Mutant(
        "speaker-is-the-double",
        "nstance.core.collecting",
        "        if speaker is not None:\n",
        "        if False:\n",
        "of two VMs with one ID, the one that has registered is deleted",
        seeds=(5058,),
    ),
    Mutant(
        "nonce-by-the-wall-clock",
        "nstance.server.issuing",
        "verify_agent_nonce(token, now=self._clock.steady(), shard=self._shard)",
        "verify_agent_nonce(token, now=self._clock.wall(), shard=self._shard)",
        "somebody sets a clock, and agents whose answer was lost can never come back",
        seeds=(9779,),
    ),
)
