"""Checks why instances leave: no healthy VM is deleted by mistake (invariant I10).

Each cause in a record must be true in the simulated world at the moment of the decision.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nstance.core import offers
from nstance.model.group import Preference
from nstance.model.ids import GroupKey, InstanceId, ProviderId
from nstance.model.instance import Cause, Instance, State
from nstance.sim.audit.rollouts import View
from nstance.sim.desired_groups import DEAD_AFTER, READY_TIMEOUT, REGISTRATION_TIMEOUT

if TYPE_CHECKING:
    from nstance.sim.audit.auditor import Auditor
    from nstance.sim.world import World

RECONNECT_SECONDS = 10.0  # within which a healthy agent finds a new leader
TOLERANCE_SECONDS = 1.5  # latencies, clock drift and timers between the world and what the auditor sees


@dataclass(frozen=True, slots=True)
class Truth:
    """The state of the world when a leader decided something."""

    at: float
    unresponsive: dict[InstanceId, float] = field(default_factory=dict)  # seconds since this leader saw the agent
    healthy: dict[InstanceId, float] = field(default_factory=dict)  # seconds without a fault of the agent's own
    running: set[InstanceId] = field(default_factory=set)  # whose VMs ran
    connected: set[ProviderId] = field(default_factory=set)  # whose agents were connected to this leader
    has_drainer: bool = False  # the journal knew an operator that drains, and it had been there of late
    existing: set[InstanceId] = field(default_factory=set)  # whose VMs were there, running or not
    views: dict[GroupKey, View] = field(default_factory=dict)  # of the groups that were decided about


class DepartureAuditor:
    def __init__(self, world: "World", auditor: "Auditor") -> None:
        self._world = world
        self._auditor = auditor

    def check(self, old: Instance, new: Instance, before: dict[InstanceId, Instance]) -> None:
        """An instance leaves its group's capacity."""
        world, auditor = self._world, self._auditor
        world.count(f"left {new.cause.value if new.cause else 'without cause'}")
        notices = {kind for agent in world.agents_of(new.id) for kind in agent.notices}
        if old.state is State.RUNNING and new.state is State.DELETING:
            self._check_not_drained(new)
        match new.cause:
            case Cause.GONE:
                if new.id in auditor.truth.running:
                    self._report(f"{new.id} was considered gone, but its VM runs")
            case Cause.UNHEALTHY:
                self._check_unhealthy(old, new, before)
            case Cause.SPOT:
                if not notices & {"SPOT_TERMINATION", "SPOT_REBALANCE"}:
                    self._report(f"{new.id} leaves for a spot notice that was never given")
            case Cause.SHUTDOWN:
                if "SHUTDOWN" not in notices:
                    self._report(f"{new.id} leaves for a shutdown that was never announced")
            case Cause.DRIFT:
                if not any(g.infra_hash != old.infra_hash for g in auditor.desired.of(new.key)):
                    self._report(f"{new.id} leaves for drift, but matches every desired revision")
            case Cause.PREFERENCE:
                self._check_preference(old)
            case Cause.FORCED_EXPIRY | Cause.ELIGIBLE_EXPIRY:
                self.check_age(old, new.cause)
            case Cause.SCALE_DOWN:
                size = min((g.size for g in auditor.desired.of(new.key)), default=0)
                # In one decision a group may shrink, and one of the rest leave for another reason.
                others = sum(
                    m.cause is not Cause.SCALE_DOWN and not m.counts and m.id in before and before[m.id].counts
                    for m in auditor.members(new.key)
                )
                if auditor.count_places(new.key) + others < size:
                    self._report(f"{new.id} was scaled down below the size of {new.key}")
            case Cause.UNREGISTERED:
                age = world.steady(new.created)
                if old.registered is not None or age < REGISTRATION_TIMEOUT - TOLERANCE_SECONDS:
                    self._report(f"{new.id} was given up as unregistered after {age:.1f} s")
                # A restored backup may not know of its registration; its certificate proves it.
                truth = auditor.truth
                if min(truth.healthy.get(new.id, 0.0), truth.unresponsive.get(new.id, 0.0)) > RECONNECT_SECONDS:
                    self._report(f"{new.id} was given up as unregistered, but its agent has a certificate")
            case Cause.SUPERSEDED:
                if old.registered is not None and old.replaces is None:
                    self._report(f"{new.id} was superseded, but did not replace any instance")
            case Cause.REQUESTED:
                is_clone = auditor.is_cloned(new.id) and world.desired_groups.on_clone == "replace"
                if new.id not in auditor.requested and not is_clone:
                    self._report(f"{new.id} leaves by a request that was never made")
            case _:
                self._report(f"{new.id} leaves for {new.cause}, which cannot happen here")

    def _check_preference(self, old: Instance) -> None:
        """It leaves for a replacement in a better market or type, of a group that insists on that."""
        strict = [g for g in self._auditor.desired.of(old.key) if g.prefer is Preference.STRICT]
        if not strict:
            self._report(f"{old.id} leaves for a better offer, but its group does not insist on that")
        pairs = {(m.market, m.instance_type) for m in self._auditor.records.values() if m.replaces == old.id}
        if not any(pairs & set(offers.better_pairs(group, old)) for group in strict):
            self._report(f"{old.id} leaves for a better offer, but its replacement is in {pairs or 'none'}")

    def check_age(self, old: Instance, cause: Cause | None) -> None:
        """It leaves, or its replacement is created, because it is too old."""
        configured, age = self._world.setup.desired_groups, self._world.steady(old.created)
        limits = {Cause.FORCED_EXPIRY: configured.forced_age, Cause.ELIGIBLE_EXPIRY: configured.eligible_age}
        if cause not in limits:
            return
        limit = limits[cause]
        if limit is None or age < limit - TOLERANCE_SECONDS:
            self._report(f"{old.id} leaves because of its age at {age:.1f} s, the limit is {limit}")

    def _check_unhealthy(self, old: Instance, new: Instance, before: dict[InstanceId, Instance]) -> None:
        world, auditor = self._world, self._auditor
        if self._was_never_ready(old):
            world.count("left never ready")
            return
        has_failed = self._has_failed(old)
        if has_failed:
            world.count("left failing checks")
        else:
            self._check_unresponsive(old)
        # Records before the decision too: where the group shrinks in the same decision, a replacement that leaves loses
        # its link. It may have been created in this decision: then only its VM tells.
        members = (*before.values(), *auditor.records.values())
        created = {m.id for m in members if m.state is not State.PENDING and (m.counts or m.provider_id is not None)}
        is_replaced = any(m.replaces == new.id and m.id in created for m in members)
        if not old.on_demand and not is_replaced and not (has_failed and old.ready_at is None):
            self._report(f"{new.id} is unhealthy and leaves before its replacement was created")
        running = [m for m in auditor.records.values() if m.state is State.RUNNING or m.id == new.id]
        dead = sum(self._is_unresponsive(m.id) for m in running)
        if dead > 3 and dead * 2 > len(running):
            self._report(f"{new.id} leaves although {dead} of {len(running)} are unresponsive")

    def _was_never_ready(self, old: Instance) -> bool:
        if old.ready_at is not None or old.registered is None:
            return False
        if old.id in self._auditor.truth.views[old.key].firmly_ready:
            return False
        return self._world.steady(old.registered) >= READY_TIMEOUT - TOLERANCE_SECONDS

    def _check_unresponsive(self, old: Instance) -> None:
        truth = self._auditor.truth
        unresponsive = truth.unresponsive.get(old.id, DEAD_AFTER)
        if unresponsive < (DEAD_AFTER - TOLERANCE_SECONDS) * (1 - 2 * self._world.setup.drift):
            self._report(f"{old.id} was given up as unhealthy after {unresponsive:.1f} s without a sign of life")
        if (healthy := truth.healthy.get(old.id, 0.0)) > RECONNECT_SECONDS:
            self._report(f"{old.id} was given up as unhealthy, but was healthy for {healthy:.1f} s")

    def _has_failed(self, old: Instance) -> bool:
        """Its check has failed for long enough, or did so until a moment ago."""
        limit = self._world.desired_groups.groups[old.group].unhealthy_after
        agents = self._world.agents_of(old.id)
        return bool(limit) and any(a.failed_for() >= limit - TOLERANCE_SECONDS for a in agents)

    def _is_unresponsive(self, id: InstanceId) -> bool:
        """Only agents that have registered count: a duplicate VM that was deleted never had the identity."""
        holders = [a for a in self._world.agents_of(id) if a.registered]
        return bool(holders) and all(a.unreachable_for() > DEAD_AFTER for a in holders)

    def _check_not_drained(self, new: Instance) -> None:
        """It is deleted at once, although there may be an operator that would drain it."""
        truth = self._auditor.truth
        if new.drain is not None:  # begun and ended in one decision
            self.check_drain_end(new, new)
        elif truth.has_drainer and new.id in truth.running:
            desired = self._auditor.desired.of(new.key)
            if desired and all(group.drain_timeout > 0 for group in desired):
                self._report(f"{new.id} is deleted without a drain")

    def check_drain_end(self, old: Instance, new: Instance) -> None:
        assert old.drain is not None
        if new.id in self._auditor.drained:
            return
        if self._world.steady(old.drain.deadline) >= -TOLERANCE_SECONDS:
            self._world.count("drain deadline passed")
        elif new.id in self._auditor.truth.running:
            self._report(f"the drain of {new.id} ended too early")

    def _report(self, text: str) -> None:
        self._world.violation(f"I10: {text}")
