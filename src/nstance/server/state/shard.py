"""The one owner of a shard's state during a term: decide, commit, act.

Everything reaches it as an event through the inbox. The changes of a decision are queued for the journal at once, and its
effects start when they are durable. The trap: an effect without a change of its own may rest on a change that is still
being written, so it waits for everything queued before it.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from nstance.core.decide import decide, is_held
from nstance.model import decision as dec
from nstance.model import events as ev
from nstance.model.decision import Decision, ReasonCode, Rejection, Trend, View
from nstance.model.group import Group, Policy
from nstance.model.ids import GroupKey, GroupName, InstanceId, Kind, TenantId
from nstance.model.instance import Change, Instance, Put, State
from nstance.model.observation import Observation
from nstance.model.rollout import GroupRecord
from nstance.server.liveness.agent_liveness import TICK, AgentLiveness
from nstance.server.state.alarms import AlarmKind, Alarms
from nstance.server.state.commits import Committed
from nstance.server.state.drainers import Drainers
from nstance.server.state.event_log import logged
from nstance.server.state.inbox import Batch, Item, fail_deposed
from nstance.server.state.offer_memory import OfferMemory
from nstance.server.state.shard_parts import ShardHooks, ShardParts
from nstance.server.state.unknown_vms import UnknownVms


class Shard:
    def __init__(
        self,
        parts: ShardParts,
        hooks: ShardHooks,
        *,
        policy: Policy,
        groups_lost: bool = False,
        drainers: Iterable[TenantId] = (),
    ) -> None:
        """`groups_lost`: there is no file of dynamic groups. `drainers`: tenants that had one when the last term ended."""
        self.term = parts.term
        self.event_log = parts.event_log
        self.commits = parts.commits
        self.policy = policy
        self.unknown = UnknownVms()
        self.too_many_unknown = False  # to delete them without a person
        self.listed = False
        self.mass_absence = False
        self.alarms = Alarms()
        self.offers = OfferMemory(parts.clock)
        self.post = parts.inbox.post
        self.ask = parts.inbox.ask
        self.look_again = parts.inbox.look_again
        self.members = parts.state.members
        self.keys = parts.state.keys
        self.owner_of_key = parts.state.owner_of_key
        self._state = parts.state
        self._inbox = parts.inbox
        self._clock = parts.clock
        self._ids = parts.ids
        self._hooks = hooks
        self._groups_lost = groups_lost
        self._group_deletions: set[GroupKey] = set()  # requested, and not decided yet
        self._trends: dict[GroupKey, Trend] = {}
        self._timers: dict[GroupKey, asyncio.TimerHandle] = {}
        self._undurable: deque[tuple[asyncio.Future[None], Callable[[], None]]] = deque()
        self._mass_since: float | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self.liveness = AgentLiveness(self._state, clock=self._clock, last_seen=hooks.last_seen)
        self.drainers = Drainers(
            drainers, clock=self._clock, lease=lambda: self.policy.operator_recent, record=self._record_drainer
        )

    # ---- what others read

    @property
    def instances(self) -> Mapping[InstanceId, Instance]:
        return self._state.instances

    @property
    def facts(self) -> Mapping[InstanceId, Observation]:
        return self._state.facts

    @property
    def desired_groups(self) -> Mapping[GroupKey, Group]:
        return self._state.desired_groups

    @property
    def group_records(self) -> Mapping[GroupKey, GroupRecord]:
        return self._state.group_records

    def blocked_reason(self, key: GroupKey) -> str:
        """Why no instance of the group can be created now; empty if one can."""
        return self._hooks.blocked_reason(key)

    def no_capacity_reason(self, key: GroupKey) -> str:
        """Why the group lacks instances that cannot be created anywhere; empty otherwise."""
        group = self.desired_groups.get(key)
        if group is None or not self.offers.exhausted:
            return ""
        lacking = group.size - sum(member.counts for member in self.members(key).values())
        return self.offers.explain_blocked(group) if lacking > 0 else ""

    def trend(self, key: GroupKey) -> Trend:
        return self._trends.get(key) or Trend()

    def held_groups(self) -> list[GroupKey]:
        """Groups that the API created and that are not configured any more, although nobody deleted them."""
        return sorted(
            key
            for key, record in self.group_records.items()
            if record.dynamic and key not in self._group_deletions and is_held(self._view(key), record)
        )

    def plan(
        self, key: GroupKey, desired: Group | None, event: ev.Event | None = None, policy: Policy | None = None
    ) -> Decision:
        """What would be decided if the group were desired like this and the event happened. Changes nothing."""
        now = self._clock.steady()
        self._update_liveness(key, (), now)  # nothing updates it for a group that is paused
        return decide(
            replace(self._view(key), desired=desired),
            [event or ev.GroupChanged()],
            now=now,
            policy=policy or self.policy,
            fresh_ids=self._fresh_ids(desired),
        )

    # ---- what others change

    def configure(
        self, desired_groups: Mapping[GroupKey, Group], policy: Policy, *, groups_lost: bool | None = None
    ) -> None:
        """Take new desired groups over; every group whose settings or timings changed is decided again."""
        old = self.desired_groups
        changed = [
            key
            for key in dict.fromkeys((*desired_groups, *old))
            if (after := desired_groups.get(key)) is not (before := old.get(key)) and after != before
        ]
        if policy != self.policy:
            changed = list(dict.fromkeys((*changed, *self.keys())))
        self._state.desired_groups, self.policy = desired_groups, policy
        if groups_lost is not None:
            self._groups_lost = groups_lost
        self.look_again(changed)

    def set_listing(self, *, mass_absence: bool) -> None:
        """The provider was listed completely."""
        if not self.listed or mass_absence != self.mass_absence:
            self.listed, self.mass_absence = True, mass_absence
            self.look_again()

    def delete_group(self, key: GroupKey) -> None:
        """Somebody deleted the group by name. To be called before the group is missing from the configuration."""
        self._group_deletions.add(key)
        self.post(ev.GroupDeleted(), key=key)

    # ---- the loop

    async def run(self) -> None:
        """Decide until cancelled. Raises ShardFailedError."""
        batch: Batch = {}
        self.look_again()
        self._tick()
        self.drainers.start()
        try:
            while True:
                await self._inbox.wait()
                await self.term.ready()
                batch = self._inbox.take()
                for key in list(batch):
                    self._decide(key, batch[key])
                    del batch[key]
                    if batch:
                        await asyncio.sleep(0)  # many groups: let connections be served in between
        finally:
            self.event_log.close()
            self.drainers.close()
            for timer in (self._ticker, *self._timers.values()):
                if timer is not None:
                    timer.cancel()
            self._inbox.close(batch)

    def _tick(self) -> None:
        self.liveness.notice_deafness()
        if self.liveness.mass_silence:  # perhaps of agents whose groups decide no more
            self._judge_silence(self._clock.steady(), quiet=False)
        self._ticker = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _decide(self, key: GroupKey, items: Sequence[Item]) -> None:
        # While the lease was in doubt, a sender may have concluded that nothing will happen. An instance that was created
        # for it after that would belong to nobody.
        items = [item for item in items if not item.is_abandoned and not self._is_taken(key, item)]
        if not items:
            return
        self._state.open_group(key)
        now = self._clock.steady()
        self._update_liveness(key, items, now)
        decision = decide(
            self._view(key),
            [item.event for item in items],
            now=now,
            policy=self.policy,
            fresh_ids=self._fresh_ids(self.desired_groups.get(key)),
        )
        self._state.observe(decision.observations)
        self._trends[key] = decision.trend
        if decision.exhausted is not None and self.offers.update(decision.exhausted):
            self.look_again()  # groups that wait for capacity
        before = {id: self.instances[id] for id in map(_subject, decision.changes) if id in self.instances}
        changes = tuple(self._complete(change) for change in decision.changes)
        records = (decision.record,) if decision.record is not None else ()
        self._apply(changes, records)
        self._group_deletions.discard(key)
        self._schedule(key, decision.wake_at, now)
        for id in _registered(decision, items):
            self.liveness.registering(id)
        barrier: asyncio.Future[None] | None
        if changes or records:
            self.event_log.write()  # earlier events share its slot
            barrier = self._commit(key, decision, changes, records)
        else:
            if decision.reasons:
                self.event_log.add(key, decision.reasons)
            barrier = self.commits.barrier()
        posted = min(item.posted for item in items)
        committed = Committed(key, changes, decision.reasons, before, posted, self._clock.monotonic())
        if barrier is None:
            self._follow_durable()
            self._follow(decision, committed, items, posted)
        else:
            for effect in decision.effects:
                if isinstance(effect, dec.CheckVm):  # a status check needs no commit
                    self._start(effect, posted)
            follow = functools.partial(self._follow, decision, committed, items, posted, done=barrier)
            self._undurable.append((barrier, follow))
            barrier.add_done_callback(lambda done: self._follow_durable())
        if self._state.close_group(key):
            self._trends.pop(key, None)
            if (timer := self._timers.pop(key, None)) is not None:
                timer.cancel()

    def _is_taken(self, key: GroupKey, item: Item) -> bool:
        """Callers choose the IDs of on-demand instances, and may have asked two groups for the same one at once."""
        known = self.instances.get(item.event.id) if isinstance(item.event, ev.InstanceRequested) else None
        if known is None or known.key == key:
            return False
        item.reply(Rejection.EXISTS)
        return True

    def _update_liveness(self, key: GroupKey, items: Sequence[Item], now: float) -> None:
        liveness, suspect_after = self.liveness, self.policy.suspect_after
        liveness.notice_deafness()
        quiet = liveness.refresh(self.members(key), now, suspect_after)
        for item in items:
            liveness.note(item.event)
        self._judge_silence(now, quiet=quiet)

    def _judge_silence(self, now: float, *, quiet: bool) -> None:
        liveness = self.liveness
        verdict = liveness.judge(now, self.policy.suspect_after, quiet=quiet)
        if verdict is not None:
            self.alarms.set(AlarmKind.MASS_SILENCE, verdict if liveness.mass_silence else "")
            self.event_log.record_for_all(ReasonCode.MASS_SILENCE, verdict)
            self.look_again()
        if not (liveness.mass_silence or liveness.doubt or self.mass_absence):
            self._mass_since = None
        elif self._mass_since is None:
            self._mass_since = now

    def _view(self, key: GroupKey) -> View:
        return View(
            key=key,
            desired=self.desired_groups.get(key),
            members=self.members(key),
            observations=self.facts,
            trend=self.trend(key),
            record=self.group_records.get(key),
            unknown=self.unknown.of(key),
            groups_lost=self._groups_lost,
            listed=self.listed,
            listening_since=self.liveness.listening_since,
            reconnect_grace=self.liveness.reconnect_grace,
            mass_silence=self.liveness.mass_silence or self.liveness.doubt,
            mass_absence=self.mass_absence,
            mass_since=self._mass_since,
            revision_stored=self._hooks.is_revision_stored(key),
            operator_seen=self.drainers.last_seen(key.tenant),
            exhausted=self.offers.exhausted,
            crowded=self._hooks.crowded_subnets(),
            blocked=self._hooks.blocked_reason(key),
            fallback=self._hooks.find_fallback(key),
        )

    def _fresh_ids(self, desired: Group | None) -> Iterator[InstanceId]:
        kind = desired.kind if desired is not None else Kind("non")
        while True:
            yield self._ids.make(kind)

    def _complete(self, change: Change) -> Change:
        match change:
            case Put(instance) if instance.state is State.PENDING and not instance.request_hash:
                return Put(self._hooks.complete_intent(instance))
            case _:
                return change

    def _apply(self, changes: Sequence[Change], records: Sequence[GroupRecord]) -> None:
        known = {id for id in map(_subject, changes) if id in self.instances}
        self._state.apply(changes, records)
        for change in changes:
            if not isinstance(change, Put):
                self.liveness.forget(change.id)
                continue
            if change.instance.id not in known:
                self.unknown.forget(change.instance.id)
            if change.instance.state is not State.RUNNING:
                self.liveness.forget(change.instance.id)

    def _commit(
        self, key: GroupKey, decision: Decision, changes: tuple[Change, ...], records: tuple[GroupRecord, ...]
    ) -> "asyncio.Future[None]":
        about = None if any(isinstance(change, Put) for change in changes) else key  # a changed record names the group
        reason = tuple(logged(each, about) for each in decision.reasons)
        return self.commits.commit(reason=reason, changes=changes, groups=records)

    def _follow_durable(self) -> None:
        """In the order of the decisions, whatever order the loop calls back in: observers fold changes."""
        while self._undurable and self._undurable[0][0].done():
            _, follow = self._undurable.popleft()
            follow()

    def _follow(
        self,
        decision: Decision,
        committed: Committed,
        items: Sequence[Item],
        posted: float,
        *,
        done: "asyncio.Future[None] | None" = None,
    ) -> None:
        """The decision is durable: act on it and answer those who asked. `done`: the commit that was waited for."""
        problem = done.exception() if done is not None and not done.cancelled() else None
        if done is not None and (done.cancelled() or problem is not None):
            fail_deposed(items, problem)
            return
        for effect in decision.effects:
            if done is None or not isinstance(effect, dec.CheckVm):  # those are started already
                self._start(effect, posted)
        if committed.changes or committed.reasons or decision.record is not None:
            self.commits.notify(committed)
        if self._inbox.failure is not None:
            fail_deposed(items)
            return
        for id in _registered(decision, items):
            self.liveness.registered(id)
        for position, item in enumerate(items):
            item.reply(decision.rejections.get(position))

    def _start(self, effect: dec.Effect, posted: float) -> None:
        instance = self.instances.get(effect.id)
        if instance is not None and self._inbox.failure is None:
            try:
                self._hooks.start_effect(effect, instance, posted)
            except Exception as problem:
                self._inbox.fail(f"start {type(effect).__name__} of {effect.id}", problem)

    def _record_drainer(self, tenant: TenantId, drains: bool) -> None:
        ended = "no operator drains instances: they are deleted without a drain"
        message = "an operator drains instances" if drains else ended
        self.event_log.record(GroupKey(tenant, GroupName("")), ReasonCode.DRAINER, message)
        self.event_log.write()
        self.commits.commit(drainers={tenant: drains})

    def _schedule(self, key: GroupKey, wake_at: float | None, now: float) -> None:
        """One timer per group, at the next time at which anything here could change."""
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if wake_at is not None:
            delay = max(0.001, wake_at - now)
            self._timers[key] = asyncio.get_running_loop().call_later(delay, self._on_timer, key)

    def _on_timer(self, key: GroupKey) -> None:
        self.post(ev.TimerFired(), key=key)


def _registered(decision: Decision, items: Sequence[Item]) -> list[InstanceId]:
    """Whose registrations the decision accepts."""
    return [
        item.event.id
        for position, item in enumerate(items)
        if isinstance(item.event, ev.Registered) and position not in decision.rejections
    ]


def _subject(change: Change) -> InstanceId:
    return change.instance.id if isinstance(change, Put) else change.id
