"""A decision while it is being made.

The steps of a decision change the draft; from the outside `decide` is a pure function. All changes of records and
observations go through here, so the transition table is checked in one place.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from operator import attrgetter

from nstance.core.triage import Limits, Triage, is_ended, sort_members, unready_deadline
from nstance.model.decision import (
    CheckVm,
    CreateVm,
    Decision,
    DeleteDuplicateVm,
    DeleteVm,
    Effect,
    Reason,
    ReasonCode,
    Rejection,
    Trend,
    View,
)
from nstance.model.events import VmState
from nstance.model.group import Group, Policy
from nstance.model.ids import InstanceId
from nstance.model.instance import TRANSITIONS, Change, Instance, Put, Remove, State
from nstance.model.observation import AgentObservation, CallObservation, Observation, VmObservation
from nstance.model.rollout import GroupRecord, Revision

ABSENCE_CERTAIN_AFTER_SECONDS = 120.0
UNDESIRED_REGISTRATION_TIMEOUT_SECONDS = 300.0  # for on-demand instances of a group that was deleted meanwhile
# Creations start first, because a replacement is more urgent than a deletion.
_EFFECT_ORDER: Mapping[type[Effect], int] = {CreateVm: 0, CheckVm: 1, DeleteVm: 2, DeleteDuplicateVm: 3}


class Draft:
    def __init__(self, view: View, *, now: float, policy: Policy, fresh_ids: Iterator[InstanceId]) -> None:
        self.view = view
        self.now = now
        self.policy = policy
        self.desired: Group | None = view.desired
        self.trend: Trend = view.trend
        self.exhausted = view.exhausted
        self.record: GroupRecord | None = view.record
        self.members: dict[InstanceId, Instance] = dict(view.members)
        self.change_count = 0  # of changed records
        self.unhealthy: frozenset[InstanceId] = frozenset()  # not ready for too long, to be replaced
        self.limits = self._compute_limits()
        self._fresh_ids = fresh_ids
        self._learned: dict[InstanceId, Observation] = {}
        # For a record that this leader has only read: nothing could be observed before the term began.
        self._unknown = Observation(AgentObservation(last_seen=view.listening_since))
        self._changes: dict[InstanceId, Change] = {}
        self._effects: list[Effect] = []
        self._reasons: list[Reason] = []
        self._rejections: dict[int, Rejection] = {}
        self._wake_at: float | None = None
        self._capacity: list[Instance] | None = None
        self._replacements: dict[InstanceId, list[Instance]] | None = None
        self._subnet_use: Counter[str] | None = None
        self._triage: Triage | None = None

    def _compute_limits(self) -> Limits:
        desired, policy, view = self.desired, self.policy, self.view
        unhealthy_after = desired.unhealthy_after if desired is not None else None
        return Limits(
            now=self.now,
            infra_hash=desired.infra_hash if desired is not None else None,
            drain_timeout=self.drain_timeout,
            suspect_after=policy.suspect_after,
            max_age=min((age for age in (policy.eligible_age, policy.forced_age) if age is not None), default=inf),
            registration_timeout=(
                desired.registration_timeout if desired is not None else UNDESIRED_REGISTRATION_TIMEOUT_SECONDS
            ),
            ready_timeout=desired.ready_timeout if desired is not None else inf,
            unhealthy_after=inf if unhealthy_after is None else unhealthy_after,
            deleted_retention=policy.deleted_retention,
            listening_since=view.listening_since,
            reconnect_until=view.listening_since + max(policy.suspect_after, view.reconnect_grace),
        )

    @property
    def size(self) -> int:
        return self.desired.size if self.desired is not None else 0

    @property
    def paused(self) -> bool:
        return self.desired is not None and self.desired.paused

    @property
    def drain_timeout(self) -> float | None:
        """The group's drain timeout as its instances store it; None: the shard's default."""
        if self.desired is None or self.desired.drain_timeout == self.policy.default_drain_timeout:
            return None
        return self.desired.drain_timeout

    @property
    def current_revision(self) -> Revision | None:
        return self.record.current if self.record is not None else None

    @property
    def can_delete(self) -> bool:
        """In doubt nothing is deleted: not before the first listing of a term, not after one that looks wrong."""
        return self.view.listed and not self.view.mass_absence

    # ---- the group's members

    def capacity(self) -> Sequence[Instance]:
        """The members that count toward the size, oldest first."""
        if self._capacity is None:
            # As `Instance.counts`, which hashes the state: too slow for thousands of members.
            running, starting, pending = State.RUNNING, State.STARTING, State.PENDING
            self._capacity = [
                m
                for m in self.members.values()
                if ((state := m.state) is running or state is starting or state is pending) and not m.on_demand
            ]
            self._capacity.sort(key=attrgetter("id"))
        return self._capacity

    @property
    def triage(self) -> Triage:
        """Repeated when a record has changed. Observations that change meanwhile concern members that need attention."""
        if self._triage is None:
            self._triage = sort_members(self.members, self._learned, self.view.observations, self._unknown, self.limits)
        return self._triage

    def needs_attention(self) -> Sequence[Instance]:
        """All members but those that `triage` skips."""
        return self.triage.needs_attention

    def count_existing(self) -> int:
        """Every VM that exists or may exist, including those that drain or are being deleted."""
        return self.triage.existing + sum(not m.on_demand and not is_ended(m) for m in self.needs_attention())

    def count_ready(self) -> int:
        return self.triage.ready + sum(self.is_ready(m) for m in self.needs_attention())

    def count_ready_and_current(self) -> int:
        ready = (m for m in self.needs_attention() if self.is_ready(m))
        return self.triage.ready_and_current + sum(not drifted(m, self.desired) for m in ready)

    def count_unready(self) -> int:
        """How many members of the capacity reported that they are not ready."""
        return self.triage.unready + sum(self.is_unready(m) for m in self.needs_attention())

    def is_ready(self, instance: Instance) -> bool:
        if instance.state is not State.RUNNING or instance.suspect or instance.on_demand:
            return False
        agent = self.observation(instance.id).agent
        return agent.ready and agent.connected

    def is_unready(self, instance: Instance) -> bool:
        """Whether it reported that it is not ready. An instance without a report is neither ready nor unready."""
        if instance.state is not State.RUNNING or instance.suspect or instance.on_demand:
            return False
        agent = self.observation(instance.id).agent
        return agent.connected and not agent.ready and bool(agent.not_ready)

    def unready_deadline(self, instance: Instance) -> float:
        return unready_deadline(instance, self.observation(instance.id).agent, self.limits)

    def is_responsive(self, id: InstanceId) -> bool:
        """Whether its agent is connected and was seen lately: better evidence of a running VM than the provider's word."""
        agent = self.observation(id).agent
        return agent.connected and self.now < agent.last_seen + self.policy.suspect_after

    def is_stopped(self, instance: Instance) -> bool:
        """Whether it is certain that the VM does not run."""
        observed = self.observation(instance.id)
        state = observed.vm.state
        if state is VmState.RUNNING or state is VmState.UNKNOWN:
            return False
        return state is not VmState.ABSENT or self._is_absence_certain(instance, observed)

    def _is_absence_certain(self, instance: Instance, observed: Observation) -> bool:
        """Listings lag behind creation: until a VM was seen once, it must be absent for two minutes. A pending instance is
        never absent, because its create call is repeated with the same ID."""
        agent, vm = observed.agent, observed.vm
        if instance.state is State.PENDING or vm.absent_since is None or vm.checked_at is None:
            return False
        if agent.seen_this_term and vm.checked_at <= agent.last_seen:
            return False
        return instance.seen or vm.checked_at >= vm.absent_since + ABSENCE_CERTAIN_AFTER_SECONDS

    def replacements(self) -> Mapping[InstanceId, list[Instance]]:
        """The replacements of each instance, both part of the capacity, by the ID of the old one."""
        if self._replacements is None:
            self._replacements = {}
            for member in self.capacity():
                old = self.replaced_by(member) if member.replaces is not None else None
                if old is not None:
                    self._replacements.setdefault(old.id, []).append(member)
        return self._replacements

    def replaced_by(self, instance: Instance) -> Instance | None:
        """The instance that this one will replace, if it still counts."""
        old = self.members.get(instance.replaces) if instance.replaces is not None else None
        return old if old is not None and old.counts else None

    def count_places(self) -> int:
        """What is compared with the size: a replacement shares the place of the instance that it replaces."""
        return len(self.capacity()) - sum(map(len, self.replacements().values()))

    def subnet_use(self) -> Counter[str]:
        """The capacity by subnet. Kept up to date, because a growing group asks for it once per new instance."""
        if self._subnet_use is None:
            self._subnet_use = Counter(m.subnet for m in self.capacity())
        return self._subnet_use

    # ---- changes

    def observation(self, id: InstanceId) -> Observation:
        return self._learned.get(id) or self.view.observations.get(id, self._unknown)

    def observe(
        self,
        id: InstanceId,
        *,
        agent: AgentObservation | None = None,
        vm: VmObservation | None = None,
        calls: CallObservation | None = None,
    ) -> None:
        """Replace parts of an observation."""
        known = self.observation(id)
        self._learned[id] = Observation(agent or known.agent, vm or known.vm, calls or known.calls)

    def put(self, instance: Instance) -> Instance:
        """Add or change a record. A transition that the table does not allow is a bug."""
        before = self.members.get(instance.id)
        if before is not None:
            if instance == before:
                return instance
            allowed = instance.state is before.state or instance.state in TRANSITIONS[before.state]
            assert allowed, f"{instance.id}: {before.state} -> {instance.state}"
        self._count_subnet(before, -1)
        self._count_subnet(instance, 1)
        self.members[instance.id] = instance
        self._add_change(instance.id, Put(instance))
        return instance

    def remove(self, id: InstanceId) -> None:
        self._count_subnet(self.members.pop(id), -1)
        self._add_change(id, Remove(id))

    def _count_subnet(self, member: Instance | None, number: int) -> None:
        if self._subnet_use is not None and member is not None and member.counts:
            self._subnet_use[member.subnet] += number

    def _add_change(self, id: InstanceId, change: Change) -> None:
        self._changes[id] = change
        self._capacity = self._replacements = self._triage = None
        self.change_count += 1

    def new_id(self) -> InstanceId:
        return next(self._fresh_ids)

    def add_effect(self, effect: Effect) -> None:
        self._effects.append(effect)

    def add_reason(self, code: ReasonCode, message: str, instance: InstanceId | None = None) -> None:
        self._reasons.append(Reason(code, message, instance))

    def reject(self, position: int, rejection: Rejection) -> None:
        self._rejections[position] = rejection

    def wake(self, at: float) -> None:
        """Decide again at that time, or earlier."""
        if at < inf and (self._wake_at is None or at < self._wake_at):
            self._wake_at = at

    def is_due(self, at: float) -> bool:
        """Whether that time has come; if not, the group is decided again then."""
        if self.now >= at:
            return True
        self.wake(at)
        return False

    def clear_wake(self) -> None:
        """The steps are repeated: what they waited for may have changed."""
        self._wake_at = None

    def build_decision(self) -> Decision:
        return Decision(
            changes=tuple(self._changes.values()),
            effects=tuple(sorted(self._effects, key=lambda effect: _EFFECT_ORDER[type(effect)])),
            reasons=tuple(self._reasons),
            observations=self._learned,
            trend=self.trend,
            rejections=self._rejections,
            record=self.record if self.record != self.view.record else None,
            exhausted=self.exhausted if self.exhausted is not self.view.exhausted else None,
            wake_at=self._wake_at,
        )


def drifted(instance: Instance, desired: Group | None) -> bool:
    """Whether it was made from another revision than the group has now. An empty hash is unknown, and matches."""
    return (
        desired is not None
        and instance.infra_hash != desired.infra_hash
        and bool(desired.infra_hash)
        and bool(instance.infra_hash)
    )
