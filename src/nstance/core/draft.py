"""A decision while it is being made.

The steps of a decision change the draft; from outside, `decide` stays a pure function. All changes of records and facts
go through here, so that the transition table is checked in one place. Effects are put in order at the end: creations
first, because replacement comes first.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import attrgetter
from typing import Any

from nstance.model.decision import (
    CheckVm,
    CreateVm,
    Decision,
    DeleteDuplicateVm,
    DeleteVm,
    Effect,
    Observation,
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
from nstance.model.rollout import GroupRecord, Revision

ABSENCE_IS_TRUE_AFTER = 120.0
UNWISHED_TIMEOUT = 300.0  # for an on-demand instance whose group was deleted while it was being made
_ORDER: Mapping[type[Effect], int] = {CreateVm: 0, CheckVm: 1, DeleteVm: 2, DeleteDuplicateVm: 3}


class Draft:
    def __init__(self, view: View, *, now: float, policy: Policy, fresh_ids: Iterator[InstanceId]) -> None:
        self.view = view
        self.now = now
        self.policy = policy
        self.trend: Trend = view.trend
        self.record: GroupRecord | None = view.record
        self.members: dict[InstanceId, Instance] = dict(view.members)
        self.revision = 0  # counts changes of records
        self.unhealthy: set[InstanceId] = set()  # not ready for too long, and to be replaced for that
        self._fresh_ids = fresh_ids
        self._learned: dict[
            InstanceId, Observation
        ] = {}  # over the view's, which are those of the whole shard: never copied
        # A record that this leader has only read about: listening began with the term.
        self._unknown = Observation(last_seen=view.listening_since)
        self._changes: dict[InstanceId, Change] = {}
        self._effects: list[Effect] = []
        self._reasons: list[Reason] = []
        self._refusals: dict[int, Rejection] = {}
        self._wake: float | None = None
        self._capacity: list[Instance] | None = None
        self._replacements: dict[InstanceId, list[Instance]] | None = None
        self._subnet_use: Counter[str] | None = None
        self._needs_attention: list[Instance] = []
        self._outdated: list[Instance] = []
        self._waiting: list[Instance] = []
        self._noted_at = -1
        # Of those that are passed over: how many there are, are ready, are ready and current, reported not to be ready.
        self._passed = self._passed_ready = self._passed_current = self._passed_broken = 0
        self.healthy_until = self.waiting_until = self.kept_until = self.unready_until = inf

    @property
    def desired(self) -> Group | None:
        return self.view.desired

    @property
    def size(self) -> int:
        return self.desired.size if self.desired is not None else 0

    @property
    def drain_timeout(self) -> float | None:
        """What instances are to remember of their group's; None: it is the shard's default."""
        desired = self.desired
        return (
            None
            if desired is None or desired.drain_timeout == self.policy.default_drain_timeout
            else desired.drain_timeout
        )

    @property
    def registration_timeout(self) -> float:
        """How long after its intent an instance may register: its nonce lives no longer."""
        return self.desired.registration_timeout if self.desired is not None else UNWISHED_TIMEOUT

    @property
    def ready_timeout(self) -> float:
        return self.desired.ready_timeout if self.desired is not None else inf

    @property
    def unhealthy_after(self) -> float:
        after = self.desired.unhealthy_after if self.desired is not None else None
        return inf if after is None else after

    @property
    def rollout(self) -> Revision | None:
        """The revision that is rolled out, or was last."""
        return self.record.current if self.record is not None else None

    def keep(self, record: GroupRecord) -> None:
        """The group's record as it is from now on."""
        self.record = record

    @property
    def may_delete(self) -> bool:
        """In doubt nothing is deleted: not before the listing that a term begins with, not after one that looks wrong."""
        return self.view.listed and not self.view.mass_absence

    def capacity(self) -> list[Instance]:
        """What counts towards the size, oldest first. Not to be changed."""
        if self._capacity is None:
            # As `Instance.counts`; that hashes the state, which is slow where a thousand members are asked.
            running, starting, pending = State.RUNNING, State.STARTING, State.PENDING
            self._capacity = [
                m
                for m in self.members.values()
                if ((state := m.state) is running or state is starting or state is pending) and not m.on_demand
            ]
            self._capacity.sort(key=attrgetter("id"))
        return self._capacity

    def needs_attention(self) -> Sequence[Instance]:
        """All members but those that only time or an event could give a step of a decision something to do about: the
        plainly healthy ones, those that come up, and records that are kept for a while. In a large group almost all are
        such, and each step would look at them in vain. `healthy_until`, `unready_until`, `waiting_until` and `kept_until`
        say when the first of each kind is to be looked at again."""
        self._sort_out()
        return self._needs_attention

    def waiting(self) -> Sequence[Instance]:
        """Capacity that comes up and is not noteworthy: it is being made, or made and not registered, and not late."""
        self._sort_out()
        return self._waiting

    def needs_attention_or_outdated(self) -> Sequence[Instance]:
        """With those too that are healthy, of another configuration: after a change of it that is everybody, and only
        who rotates some of them needs to know."""
        self._sort_out()
        return self._outdated

    def _sort_out(self) -> None:
        if self._noted_at == self.revision:
            return
        self._noted_at = self.revision
        now, learned, known, unknown = self.now, self._learned, self.view.facts, self._unknown
        silence, current = self.policy.suspect_after, self.desired.infra_hash if self.desired is not None else None
        age = min((a for a in (self.policy.eligible_age, self.policy.forced_age) if a is not None), default=inf)
        timeout, patience, retention = self.drain_timeout, self.registration_timeout, self.policy.deleted_retention
        running, starting, pending = State.RUNNING, State.STARTING, State.PENDING  # looked up once
        vm_running, vm_unknown = VmState.RUNNING, VmState.UNKNOWN
        ready_timeout, unhealthy_after = self.ready_timeout, self.unhealthy_after
        last_seen = created = intended = ended = unready = inf
        passed_ready = passed_current = passed_unready = passed_broken = 0
        # New lists: somebody may be going through the former ones.
        needs_attention, outdated, waiting = self._needs_attention, self._outdated, self._waiting = [], [], []
        for id, member in self.members.items():
            if member.ended is not None and now < member.ended + retention and is_ended(member) and not member.vacant:
                if member.ended < ended:
                    ended = member.ended
                continue
            state = member.state
            facts = learned.get(id) or known.get(id, unknown)
            if (
                (facts.vm is vm_running or facts.vm is vm_unknown)
                and facts.notice is None
                and facts.check_due is None
                and not (member.suspect or member.on_demand or member.replace_wanted)
                and member.duplicate_vm is None
            ):
                if (
                    state is running
                    and facts.connected
                    and member.drain_timeout == timeout
                    and now < facts.last_seen + silence
                    and now < member.created + age
                    and (facts.ready or now < (due := self._unready_due(member, facts, ready_timeout, unhealthy_after)))
                ):
                    if facts.last_seen < last_seen:
                        last_seen = facts.last_seen
                    if member.created < created:
                        created = member.created
                    if member.infra_hash != current:
                        outdated.append(member)
                        passed_current += facts.ready and not member.infra_hash  # nobody knows what it is made of
                    elif facts.ready:
                        passed_current += 1
                    if facts.ready:
                        passed_ready += 1
                    else:
                        unready = min(unready, due)
                        passed_unready += 1
                        passed_broken += bool(facts.not_ready)
                    continue
                if (state is starting or (state is pending and facts.creating)) and now < member.created + patience:
                    if member.created < intended:
                        intended = member.created
                    waiting.append(member)
                    continue
            needs_attention.append(member)
            outdated.append(member)
        self._passed, self._passed_ready = passed_ready + passed_unready + len(waiting), passed_ready
        self._passed_current, self._passed_broken = passed_current, passed_broken
        self.healthy_until, self.unready_until = min(last_seen + silence, created + age), unready
        self.waiting_until, self.kept_until = intended + patience, ended + retention

    def _unready_due(self, member: Instance, facts: Observation, ready_timeout: float, unhealthy_after: float) -> float:
        """When one that is not ready becomes unhealthy, if nothing changes."""
        due = inf if facts.failing_since is None else facts.failing_since + unhealthy_after
        if member.ready_at is None and member.registered is not None:
            # After a change of leaders, or a lost connection, it may have become ready and could not say so.
            policy, view = self.policy, self.view
            due = min(
                due,
                max(
                    max(member.registered, facts.unblocked_at) + ready_timeout,
                    view.listening_since + max(policy.suspect_after, view.reconnect_grace),
                    facts.connected_since + policy.suspect_after,
                ),
            )
        return due

    def unready_due(self, member: Instance) -> float:
        return self._unready_due(member, self.facts(member.id), self.ready_timeout, self.unhealthy_after)

    def existing(self) -> int:
        """Every VM of the group that exists or may exist: also those that drain or are being deleted, until they are gone."""
        return self._passed + sum(not m.on_demand and not is_ended(m) for m in self.needs_attention())

    def ready(self) -> int:
        """How much of the capacity is ready."""
        return sum(self.is_ready(m) for m in self.needs_attention()) + self._passed_ready

    def ready_and_current(self) -> int:
        desired = self.desired
        needs_attention = self.needs_attention()
        return sum(not drifted(m, desired) and self.is_ready(m) for m in needs_attention) + self._passed_current

    def broken(self) -> int:
        """How much of the capacity has reported that it is not ready."""
        return sum(self.is_broken(m) for m in self.needs_attention()) + self._passed_broken

    def is_ready(self, instance: Instance) -> bool:
        if instance.state is not State.RUNNING or instance.suspect or instance.on_demand:
            return False
        facts = self.facts(instance.id)
        return facts.ready and facts.connected

    def is_broken(self, instance: Instance) -> bool:
        """It says itself that it is not ready. One of which nothing was heard yet is neither ready nor broken."""
        if instance.state is not State.RUNNING or instance.suspect or instance.on_demand:
            return False
        facts = self.facts(instance.id)
        return facts.connected and not facts.ready and bool(facts.not_ready)

    def replacements(self) -> Mapping[InstanceId, list[Instance]]:
        """By the ID of an instance that is capacity: those, capacity too, that are to take its place."""
        if self._replacements is None:
            self._replacements = {}
            for member in self.capacity():
                if member.replaces is not None:
                    old = self.members.get(member.replaces)
                    if old is not None and old.counts:
                        self._replacements.setdefault(old.id, []).append(member)
        return self._replacements

    def places(self) -> int:
        """What the size is compared with: a newcomer shares the place of the instance it is to replace."""
        return len(self.capacity()) - sum(map(len, self.replacements().values()))

    def subnet_use(self) -> Counter[str]:
        """How much of the capacity is in which subnet. Kept up to date, not counted anew: a group that comes up asks once
        for each of its members. Not to be changed."""
        if self._subnet_use is None:
            self._subnet_use = Counter(m.subnet for m in self.capacity())
        return self._subnet_use

    def facts(self, id: InstanceId) -> Observation:
        return self._learned.get(id) or self.view.facts.get(id, self._unknown)

    def learn(self, id: InstanceId, **fields: Any) -> None:
        self._learned[id] = replace(self.facts(id), **fields)

    def change(self, instance: Instance, **fields: Any) -> Instance:
        """Change a record. Anything that the transition table does not allow is a bug."""
        after = replace(instance, **fields)
        if after.state is not instance.state:
            assert after.state in TRANSITIONS[instance.state], f"{instance.id}: {instance.state} -> {after.state}"
        if after != instance:
            self.put(after)
        return after

    def put(self, instance: Instance) -> None:
        self._recount(self.members.get(instance.id), -1)
        self._recount(instance, 1)
        self.members[instance.id] = instance
        self._record(Put(instance), instance.id)

    def remove(self, id: InstanceId) -> None:
        self._recount(self.members.pop(id), -1)
        self._record(Remove(id), id)

    def _recount(self, member: Instance | None, number: int) -> None:
        if self._subnet_use is not None and member is not None and member.counts:
            self._subnet_use[member.subnet] += number

    def _record(self, change: Change, id: InstanceId) -> None:
        self._changes[id] = change
        self._capacity = self._replacements = None
        self.revision += 1

    def fresh_id(self) -> InstanceId:
        return next(self._fresh_ids)

    def effect(self, effect: Effect) -> None:
        self._effects.append(effect)

    def reason(self, code: ReasonCode, message: str, instance: InstanceId | None = None) -> None:
        self._reasons.append(Reason(code, message, instance))

    def refuse(self, position: int, refusal: Rejection) -> None:
        self._refusals[position] = refusal

    def wake(self, at: float) -> None:
        """Look again at that time, or sooner."""
        if at < inf and (self._wake is None or at < self._wake):
            self._wake = at

    def forget_wakes(self) -> None:
        """Before the plan is looked at once more: what was to be waited for may have changed."""
        self._wake = None

    def audible(self, id: InstanceId) -> bool:
        """Its agent speaks, so whatever others say, its VM runs."""
        facts = self.facts(id)
        return facts.connected and self.now < facts.last_seen + self.policy.suspect_after

    def not_running(self, instance: Instance) -> bool:
        """The provider has made it certain that this VM does not run."""
        facts = self.facts(instance.id)
        vm = facts.vm
        if vm is VmState.RUNNING or vm is VmState.UNKNOWN:
            return False
        return vm is not VmState.ABSENT or self._absence_is_certain(instance, facts)

    def _absence_is_certain(self, instance: Instance, facts: Observation) -> bool:
        """Listings lag behind creation: before a VM was seen once, only misses over two minutes count. An intent is not
        missed at all: it is asked for again with the same ID."""
        if instance.state is State.PENDING or facts.absent_since is None or facts.vm_at is None:
            return False
        if facts.met and facts.vm_at <= facts.last_seen:
            return False  # its agent has spoken since
        return instance.seen or facts.vm_at >= facts.absent_since + ABSENCE_IS_TRUE_AFTER

    def decision(self) -> Decision:
        return Decision(
            changes=tuple(self._changes.values()),
            effects=tuple(sorted(self._effects, key=lambda e: _ORDER[type(e)])),
            reasons=tuple(self._reasons),
            facts=self._learned,
            trend=self.trend,
            refusals=self._refusals,
            record=self.record if self.record != self.view.record else None,
            wake_at=self._wake,
        )


def drifted(instance: Instance, desired: Group | None) -> bool:
    return (
        desired is not None
        and instance.infra_hash != desired.infra_hash
        and bool(desired.infra_hash)
        and bool(instance.infra_hash)
    )


def is_ended(instance: Instance) -> bool:
    return instance.state is State.DELETED or instance.state is State.FAILED
