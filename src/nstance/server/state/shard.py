"""The one owner of a shard's state during a term.

Everything reaches it as an event through one inbox. A decision's changes are queued for the journal at once, and its
effects start when they are durable: *decide, commit, act*. The state in memory runs ahead of the journal, which is safe
because a commit that fails ends the term and throws all of it away. The trap: an effect without a change of its own may
rest on a change that is still on its way, so it waits for everything queued before it.
"""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from nstance.clock import Clock
from nstance.core import held_groups
from nstance.core.decide import decide
from nstance.model import decision as dec
from nstance.model import events as ev
from nstance.model.decision import Decision, Reason, ReasonCode, Rejection, Trend, View
from nstance.model.group import Group, Policy
from nstance.model.ids import GroupKey, GroupName, IdMaker, InstanceId, Kind, TenantId
from nstance.model.instance import ENDED, Change, Instance, Put, Remove, State
from nstance.model.observation import Observation
from nstance.model.rollout import GroupRecord
from nstance.objects import journal, slots
from nstance.server.election.term import Term
from nstance.server.liveness.agent_liveness import TICK, AgentLiveness
from nstance.server.state.drainers import Drainers
from nstance.server.state.event_log import EventLog, why
from nstance.server.state.unknown_vms import UnknownVms

log = logging.getLogger(__name__)

MAX_INBOX = 200_000


class OverloadedError(Exception):
    """The inbox is full: come back later."""


class ShardFailedError(Exception):
    """Something that follows a decision failed by a bug. Records and effects may disagree now, so the term must end: the
    next one derives everything from the journal again."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What observers of a shard see, after it is durable."""

    key: GroupKey  # without a name where it concerns all of a tenant's groups
    changes: tuple[Change, ...]
    reasons: tuple[Reason, ...]
    before: Mapping[InstanceId, Instance]  # of the instances that changed


@dataclass(slots=True)
class _Item:
    event: ev.Event
    posted: float
    answer: asyncio.Future[Rejection | None] | None = None


@dataclass(slots=True)
class _GroupState:
    members: dict[InstanceId, Instance] = field(default_factory=dict)
    trend: Trend = field(default_factory=Trend)
    wake: asyncio.TimerHandle | None = None


class Shard:
    def __init__(
        self,
        *,
        term: Term,
        writer: journal.Writer,
        instances: Mapping[InstanceId, Instance],
        group_records: Mapping[GroupKey, GroupRecord],
        drainers: Iterable[TenantId] = (),
        clock: Clock,
        ids: IdMaker,
        policy: Policy,
        desired_groups: Mapping[GroupKey, Group],
        prepare: Callable[[Instance], Instance],
        act: Callable[[dec.Effect, Instance, float], None],
        last_seen: Callable[[InstanceId], float | None],
    ) -> None:
        """`prepare` completes a new intent (nonce, request hash); `act` starts an effect, told when its cause was posted;
        `heard`: when the agent was last heard of, on the monotonic clock, or None if it is not connected."""
        self.term = term
        self.instances: dict[InstanceId, Instance] = dict(instances)
        self.facts: dict[InstanceId, Observation] = {}
        self.policy = policy
        self.desired_groups: dict[GroupKey, Group] = dict(desired_groups)
        self.blocked: dict[GroupKey, str] = {}
        self.crowded: Set[str] = frozenset()  # subnets that are nearly full
        self.unknown = UnknownVms()
        self.too_many_unknown = False  # for their deletion without a person's word
        self.groups_lost = False  # there is no file of dynamic groups
        self.observers: list[Callable[[Committed], None]] = []
        self._writer = writer
        self._clock = clock
        self._ids = ids
        self._prepare = prepare
        self._act = act
        self.liveness = AgentLiveness(self.instances, self.facts, clock=clock, last_seen=last_seen)
        self.notes = EventLog(
            writer,
            clock=clock,
            entry_id=self._entry_id,
            tenants=lambda: (key.tenant for key in self.keys()),
            show=lambda key, reasons: self._show(Committed(key, (), reasons, {})),
        )
        self.drainers = Drainers(
            drainers, clock=clock, lease=lambda: self.policy.operator_recent, record=self._record_drainer
        )
        self.group_records: dict[GroupKey, GroupRecord] = dict(group_records)
        self._group_deletions: set[GroupKey] = set()  # asked for, and not decided yet
        self._groups: dict[GroupKey, _GroupState] = {}
        self._keys: dict[str, InstanceId] = {}
        self._inbox: dict[GroupKey, list[_Item]] = {}
        self._waiting = 0
        self._wake = asyncio.Event()
        self._failure: ShardFailedError | None = None
        self._closed = False
        self._uncommitted: deque[tuple[asyncio.Future[None], Callable[[], None]]] = deque()
        self._entries = 0
        self.listed = False
        self.mass_absence = False
        self.unstored: set[GroupKey] = set()  # whose current revision is not in the bucket yet
        self._mass_since: float | None = None
        self._ticking: asyncio.TimerHandle | None = None
        for instance in self.instances.values():
            self._group(instance.key).members[instance.id] = instance
            if instance.public_key:
                self._keys[instance.public_key] = instance.id

    # ---- what others ask of it

    def post(self, event: ev.Event, *, key: GroupKey | None = None) -> None:
        """Let it know. `key` where the event names no known instance."""
        target = key if key is not None else self._key_of(event)
        if target is not None:
            self._put(target, _Item(event, self._clock.monotonic()))

    async def ask(self, event: ev.Event, *, key: GroupKey | None = None) -> Rejection | None:
        """Let it know, and wait until what follows from it is durable. Raises journal.Deposed."""
        target = key if key is not None else self._key_of(event)
        if target is None:
            return Rejection.UNKNOWN
        if self._waiting >= MAX_INBOX:
            raise OverloadedError("the shard has too much to do")
        if self._closed:
            raise _deposed()
        answer: asyncio.Future[Rejection | None] = asyncio.get_running_loop().create_future()
        self._put(target, _Item(event, self._clock.monotonic(), answer))
        return await answer

    def wants(self, id: InstanceId) -> bool:
        """It is not on its way out, as far as was decided."""
        instance = self.instances.get(id)
        return instance is not None and instance.state is not State.DELETING and instance.state not in ENDED

    def owner_of_key(self, public_key: str) -> InstanceId | None:
        return self._keys.get(public_key)

    def members(self, key: GroupKey) -> Mapping[InstanceId, Instance]:
        state = self._groups.get(key)
        return state.members if state is not None else {}

    def trend(self, key: GroupKey) -> Trend:
        state = self._groups.get(key)
        return state.trend if state is not None else Trend()

    def keys(self) -> list[GroupKey]:
        """All groups that are wished or have members, each once, in an order that a seed reproduces."""
        return list(
            dict.fromkeys((*self.desired_groups, *(key for key, state in self._groups.items() if state.members)))
        )

    def configure(self, desired_groups: Mapping[GroupKey, Group], policy: Policy) -> None:
        """New wishes; every group whose wish or timings changed looks again."""
        changed = [
            key
            for key in dict.fromkeys((*desired_groups, *self.desired_groups))
            if (new := desired_groups.get(key)) is not (old := self.desired_groups.get(key)) and new != old
        ]
        if policy != self.policy:
            changed = list(dict.fromkeys((*changed, *self.keys())))
        self.desired_groups, self.policy = dict(desired_groups), policy
        for key in changed:
            self._put(key, _Item(ev.GroupChanged(), self._clock.monotonic()))

    def look_again(self, keys: Iterable[GroupKey] | None = None) -> None:
        for key in self.keys() if keys is None else keys:
            self._put(key, _Item(ev.GroupChanged(), self._clock.monotonic()))

    def set_listing(self, *, mass_absence: bool) -> None:
        """The provider was listed completely."""
        if not self.listed or mass_absence != self.mass_absence:
            self.listed, self.mass_absence = True, mass_absence
            self.look_again()

    def delete_group(self, key: GroupKey) -> None:
        """Its deletion was asked for by name. To be told before its absence from the configuration."""
        self._group_deletions.add(key)
        self.post(ev.GroupDeleted(), key=key)

    def held_groups(self) -> list[GroupKey]:
        """Groups that the API made and that are not configured any more, although nobody deleted them."""
        return sorted(
            key
            for key, record in self.group_records.items()
            if record.dynamic and key not in self._group_deletions and self._is_held(key, record)
        )

    def _is_held(self, key: GroupKey, record: GroupRecord) -> bool:
        return held_groups.is_held(self._view(key, self._groups.get(key) or _GroupState()), record)

    def plan(
        self, key: GroupKey, desired: Group | None, event: ev.Event | None = None, policy: Policy | None = None
    ) -> Decision:
        """What would be decided if the group's wish were this one, and this happened. Changes nothing."""
        state = self._groups.get(key) or _GroupState()
        now = self._clock.steady()
        self._listen(state, (), now)  # nobody listens to a group while it is paused
        view = replace(self._view(key, state), desired=desired)
        return decide(
            view,
            [event or ev.GroupChanged()],
            now=now,
            policy=policy or self.policy,
            fresh_ids=self._fresh(desired),
        )

    # ---- the ring

    async def run(self) -> None:
        """Decide until cancelled. Ends with an exception only if there is a bug."""
        batch: dict[GroupKey, list[_Item]] = {}
        self.look_again()
        self._tick()
        self.drainers.start()
        try:
            while True:
                await self._wake.wait()
                await self.term.ready()
                if self._failure is not None:
                    raise self._failure
                self._wake.clear()
                batch, self._inbox, self._waiting = self._inbox, {}, 0
                for key in list(batch):
                    self._decide(key, batch[key])
                    del batch[key]
                    if batch:
                        await asyncio.sleep(0)  # many groups: let connections breathe in between
        finally:
            self._close([*batch.values(), *self._inbox.values()])

    def _close(self, undecided: Iterable[Sequence[_Item]]) -> None:
        """Nothing is decided any more, and nobody waits for a decision in vain."""
        self._closed = True
        self.notes.close()
        self.drainers.close()
        for timer in (self._ticking, *(state.wake for state in self._groups.values())):
            if timer is not None:
                timer.cancel()
        for items in undecided:
            _answer_deposed(items)

    def _fail(self, what: str, problem: Exception) -> None:
        """End the term: `run` raises."""
        log.error("%s failed, the term ends", what, exc_info=problem)
        if self._failure is None:
            self._failure = ShardFailedError(f"{what} failed: {problem!r}")
            self._failure.__cause__ = problem
            self._wake.set()

    def _tick(self) -> None:
        self.liveness.notice_deafness()
        self._ticking = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _put(self, key: GroupKey, item: _Item) -> None:
        items = self._inbox.setdefault(key, [])
        if item.answer is None and items and items[-1].event == item.event:
            return  # the same thing twice in a row teaches nothing
        items.append(item)
        self._waiting += 1
        self._wake.set()

    def _key_of(self, event: ev.Event) -> GroupKey | None:
        id = getattr(event, "id", None)
        instance = self.instances.get(id) if id is not None else None
        return instance.key if instance is not None else None

    def _group(self, key: GroupKey) -> _GroupState:
        state = self._groups.get(key)
        if state is None:
            state = self._groups[key] = _GroupState()
        return state

    def _decide(self, key: GroupKey, items: Sequence[_Item]) -> None:
        items = [item for item in items if not self._is_taken(key, item)]
        if not items:
            return
        state = self._group(key)
        now = self._clock.steady()
        self._listen(state, items, now)
        desired = self.desired_groups.get(key)
        decision = decide(
            self._view(key, state),
            [item.event for item in items],
            now=now,
            policy=self.policy,
            fresh_ids=self._fresh(desired),
        )
        self.facts.update(decision.observations)
        state.trend = decision.trend
        before = {id: self.instances[id] for id in map(_subject, decision.changes) if id in self.instances}
        changes = tuple(self._complete(change) for change in decision.changes)
        self._apply(state, changes)
        records = (decision.record,) if decision.record is not None else ()
        slots.apply_groups(self.group_records, records)
        self._group_deletions.discard(key)
        self._schedule(key, state, decision.wake_at, now)
        for id in _registered(decision, items):
            self.liveness.registering(id)
        if changes or records:
            self.notes.write()  # they share its slot
        elif decision.reasons:
            self.notes.add(key, decision.reasons)
        barrier = (
            self._writer.commit(self._entry(key, decision, changes, records))
            if changes or records
            else self._writer.barrier()
        )
        posted = min(item.posted for item in items)
        committed = Committed(key, changes, decision.reasons, before)
        if barrier is None:
            self._follow_durable()
            self._follow(decision, committed, items, posted)
        else:
            for effect in decision.effects:
                if isinstance(effect, dec.CheckVm):  # a look needs no commit
                    self._start(effect, posted)
            follow = functools.partial(self._follow, decision, committed, items, posted, done=barrier, checked=True)
            self._uncommitted.append((barrier, follow))
            barrier.add_done_callback(lambda done: self._follow_durable())
        if not state.members and desired is None:
            self._groups.pop(key, None)
            if state.wake is not None:
                state.wake.cancel()

    def _listen(self, state: _GroupState, items: Sequence[_Item], now: float) -> None:
        liveness, patience = self.liveness, self.policy.suspect_after
        liveness.notice_deafness()
        quiet = liveness.refresh(state.members, now, patience)
        for item in items:
            liveness.note(item.event)
        news = liveness.judge(now, patience, quiet=quiet)
        if news is not None:
            self.notes.announce(ReasonCode.MASS_SILENCE, news)
            self.look_again()
        if not (liveness.mass_silence or liveness.doubt or self.mass_absence):
            self._mass_since = None
        elif self._mass_since is None:
            self._mass_since = now

    def _is_taken(self, key: GroupKey, item: _Item) -> bool:
        """Callers choose the IDs of on-demand instances, and may have asked two groups for the same one at once."""
        known = self.instances.get(item.event.id) if isinstance(item.event, ev.InstanceRequested) else None
        if known is None or known.key == key:
            return False
        if item.answer is not None and not item.answer.done():
            item.answer.set_result(Rejection.EXISTS)
        return True

    def _follow_durable(self) -> None:
        """In the order in which they were decided, whatever order the loop calls back in: observers fold changes."""
        while self._uncommitted and self._uncommitted[0][0].done():
            _, follow = self._uncommitted.popleft()
            follow()

    def _follow(
        self,
        decision: Decision,
        committed: Committed,
        items: Sequence[_Item],
        posted: float,
        *,
        done: asyncio.Future[None] | None = None,
        checked: bool = False,
    ) -> None:
        """The decision is durable: act on it and answer those who asked."""
        problem = done.exception() if done is not None and not done.cancelled() else None
        if done is not None and (done.cancelled() or problem is not None):
            _answer_deposed(items, problem)
            return
        for effect in decision.effects:
            if not (checked and isinstance(effect, dec.CheckVm)):
                self._start(effect, posted)
        if committed.changes or committed.reasons or decision.record is not None:
            self._show(committed)
        if self._failure is not None:
            _answer_deposed(items)
            return
        for id in _registered(decision, items):
            self.liveness.registered(id)
        for position, item in enumerate(items):
            if item.answer is not None and not item.answer.done():
                item.answer.set_result(decision.rejections.get(position))

    def _show(self, committed: Committed) -> None:
        for observe in self.observers:
            try:
                observe(committed)
            except Exception as problem:
                self._fail("observing a decision", problem)

    def _start(self, effect: dec.Effect, posted: float) -> None:
        instance = self.instances.get(effect.id)
        if instance is not None and self._failure is None:
            try:
                self._act(effect, instance, posted)
            except Exception as problem:
                self._fail(f"starting {type(effect).__name__} of {effect.id}", problem)

    def _view(self, key: GroupKey, state: _GroupState) -> View:
        return View(
            key=key,
            desired=self.desired_groups.get(key),
            members=state.members,
            observations=self.facts,
            trend=state.trend,
            record=self.group_records.get(key),
            unknown=self.unknown.of(key),
            groups_lost=self.groups_lost,
            listed=self.listed,
            listening_since=self.liveness.listening_since,
            reconnect_grace=self.liveness.reconnect_grace,
            mass_silence=self.liveness.mass_silence or self.liveness.doubt,
            mass_absence=self.mass_absence,
            mass_since=self._mass_since,
            revision_stored=key not in self.unstored,
            operator_seen=self.drainers.last_seen(key.tenant),
            crowded=self.crowded,
            blocked=self.blocked.get(key, ""),
        )

    def _fresh(self, desired: Group | None) -> Iterator[InstanceId]:
        kind = desired.kind if desired is not None else Kind("non")
        while True:
            yield self._ids.make(kind)

    def _complete(self, change: Change) -> Change:
        match change:
            case Put(instance) if instance.state is State.PENDING and not instance.request_hash:
                return Put(self._prepare(instance))
            case _:
                return change

    def _apply(self, state: _GroupState, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case Put(instance):
                    old = self.instances.get(instance.id)
                    if old is not None and old.public_key and old.public_key != instance.public_key:
                        self._keys.pop(old.public_key, None)
                    if instance.public_key:
                        self._keys[instance.public_key] = instance.id
                    self.instances[instance.id] = state.members[instance.id] = instance
                    if old is None:
                        self.unknown.forget(instance.id)
                    if instance.state is not State.RUNNING:
                        self.liveness.forget(instance.id)
                case Remove(id):
                    gone = self.instances.pop(id, None)
                    state.members.pop(id, None)
                    self.facts.pop(id, None)
                    self.liveness.forget(id)
                    if gone is not None and self._keys.get(gone.public_key) == id:
                        del self._keys[gone.public_key]

    def _entry_id(self) -> str:
        self._entries += 1
        return f"{self.term.epoch}-{self._entries}"

    def _entry(
        self, key: GroupKey, decision: Decision, changes: tuple[Change, ...], records: tuple[GroupRecord, ...]
    ) -> slots.Entry:
        named = any(isinstance(change, Put) for change in changes)  # by a record that the entry changes
        about = None if named else key
        return slots.Entry(
            id=self._entry_id(),
            reason=tuple(why(reason, about) for reason in decision.reasons),
            changes=changes,
            groups=records,
        )

    def _record_drainer(self, tenant: TenantId, drains: bool) -> None:
        said = (
            "an operator drains instances"
            if drains
            else "no operator drains instances any more: they go without a drain"
        )
        self.notes.tell(GroupKey(tenant, GroupName("")), ReasonCode.DRAINER, said)
        self.notes.write()
        self._writer.commit(slots.Entry(id=self._entry_id(), drainers={tenant: drains}))

    def _schedule(self, key: GroupKey, state: _GroupState, wake_at: float | None, now: float) -> None:
        """One timer per group, at the next instant at which anything here could change."""
        if state.wake is not None:
            state.wake.cancel()
            state.wake = None
        if wake_at is not None:
            delay = max(0.001, wake_at - now)
            state.wake = asyncio.get_running_loop().call_later(delay, self._woke, key)

    def _woke(self, key: GroupKey) -> None:
        self._put(key, _Item(ev.TimerFired(), self._clock.monotonic()))


def _deposed() -> journal.DeposedError:
    return journal.DeposedError("this server stopped leading")


def _answer_deposed(items: Iterable[_Item], problem: BaseException | None = None) -> None:
    for item in items:
        if item.answer is not None and not item.answer.done():
            item.answer.set_exception(problem or _deposed())


def _registered(decision: Decision, items: Sequence[_Item]) -> list[InstanceId]:
    """Whose registrations the decision accepts."""
    return [
        item.event.id
        for position, item in enumerate(items)
        if isinstance(item.event, ev.Registered) and position not in decision.rejections
    ]


def _subject(change: Change) -> InstanceId:
    return change.instance.id if isinstance(change, Put) else change.id
