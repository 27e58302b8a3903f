"""Random walks of a group through a small world, in virtual time.

The world has a provider that loses answers, applies creates late, lies about deletions and lists with a lag; agents that
fall silent and return; people who scale, pause, change configurations and destroy VMs by hand; leaders that change, so
that everything but the records is forgotten. After each decision the invariants of the overview are asked for; after the
faults stop, the group must settle at its size and then stay at rest. Covers F1, F3-F5, F9-F13, F46, F48-F50, F53, F55,
F56, F59, F60, F66.

NSTANCE_WALKS sets how many walks are done, NSTANCE_WALK_SEED which is the first.
"""

import heapq
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from nstance.core.collecting import compare
from nstance.core.decide import decide
from nstance.core.silence import is_mass_silence
from nstance.model import events as ev
from nstance.model.consistency import violations
from nstance.model.decision import CheckVm, CreateVm, DeleteDouble, DeleteVm, Facts, Refused, Trend, View
from nstance.model.events import Failure, NoticeKind, VmState
from nstance.model.group import Group, Policy
from nstance.model.ids import ClusterId, GroupKey, GroupName, IdMaker, InstanceId, Kind, ProviderId, ShardId, TenantId
from nstance.model.instance import CAPACITY, TRANSITIONS, Cause, Instance, Put, State
from nstance.model.vm import SeenVm

WALKS = int(os.environ.get("NSTANCE_WALKS", "2000"))
FIRST = int(os.environ.get("NSTANCE_WALK_SEED", "0"))
CHUNKS = 4

KEY = GroupKey(TenantId("default"), GroupName("web"))
CLUSTER, SHARD = ClusterId("c"), ShardId("s")
GC = 60.0
GRACE = 40.0  # for agents to come back to a new leader
VOLUNTARY = (Cause.DRIFT, Cause.ELIGIBLE_EXPIRY)


@dataclass(slots=True)
class Vm:
    provider_id: ProviderId
    id: InstanceId
    made: float
    visible_at: float
    state: VmState = VmState.RUNNING
    agent: str = "booting"  # never, up, hung
    connected: bool = False
    heard: float = -1.0  # when the world last knows that a leader heard it
    noticed: set[NoticeKind] = field(default_factory=set)
    tagged: bool = True

    @property
    def alive(self) -> bool:
        return self.state is not VmState.DELETED


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.now = 1_000_000.0
        self.calm = False
        self.policy = Policy(
            suspect_after=10.0,
            dead_after=60.0,
            deleted_retention=rng.choice((200.0, 1800.0)),
            eligible_age=rng.choice((None, None, 400.0)),
            forced_age=rng.choice((None, None, 700.0)),
            ondemand_age=rng.choice((None, 300.0)),
        )
        self.wish: Group | None = Group(
            key=KEY,
            size=rng.randint(0, 4),
            template="t",
            kind=Kind("web"),
            subnets=rng.choice(((), ("a",), ("a", "b"))),
            infra_hash="h0",
            drain_timeout=rng.choice((0.0, 40.0, 90.0)),
            registration_timeout=90.0,
            max_surge=rng.choice((0, 1, 2)),
            max_unavailable=rng.choice((0, 0, 1, 2)),
        )
        self.template = self.wish
        self.records: dict[InstanceId, Instance] = {}
        self.facts: dict[InstanceId, Facts] = {}
        self.trend = Trend()
        self.vms: dict[ProviderId, Vm] = {}
        self.dead_ids: set[InstanceId] = set()
        self.maker = IdMaker(wall=lambda: self.now, bits=lambda n: rng.getrandbits(n))
        self.sightings: dict[InstanceId, int] = {}
        self.term = 0
        self.leading = False
        self.listed = False
        self.mass_absence = False
        self.mass_silence = False
        self.blocked = ""
        self.listening = self.now
        self.operator = rng.choice((None, self.now))
        self.acks = rng.choice((0.0, 0.5, 1.0))
        self.wake_at: float | None = None
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.seq = 0
        self.effects: Counter[str] = Counter()
        self.hashes = 0
        self.asked: set[InstanceId] = set()  # creates under way, of this term
        self.late = 0  # creates that the provider has yet to apply
        self.trace: list[str] = []
        self.lead()
        self.later(GC, self.collect)

    # -- time --------------------------------------------------------------------------------------------------------

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self.seq += 1
        heapq.heappush(self.queue, (self.now + delay, self.seq, action))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            head = self.queue[0][0] if self.queue else end
            wake = self.wake_at if self.wake_at is not None and self.leading else end
            if min(head, wake) >= end:
                break
            if head <= wake:
                self.now = max(self.now, head)
                heapq.heappop(self.queue)[2]()
            else:
                self.now = wake
                self.happen(ev.Woke())
        self.now = end

    def chance(self, probability: float) -> bool:
        return not self.calm and self.rng.random() < probability

    # -- the shell around the decision ---------------------------------------------------------------------------------

    def view(self) -> View:
        return View(
            key=KEY,
            wish=self.wish,
            members=self.records,
            facts=self.facts,
            trend=self.trend,
            listed=self.listed,
            listening_since=self.listening,
            reconnect_grace=GRACE,
            mass_silence=self.mass_silence,
            mass_absence=self.mass_absence,
            operator_seen=self.now if self.calm else self.operator,
            blocked=self.blocked,
        )

    def happen(self, *events: ev.Event) -> dict[int, Refused]:
        if not self.leading:
            return {}
        if self.chance(0.05):
            events = (*events, self.rng.choice(events))
        self.listen()
        ids = iter(lambda: self.maker.make(Kind("web")), None)
        decision = decide(self.view(), events, now=self.now, policy=self.policy, fresh_ids=ids)
        assert decision.wake_at is None or decision.wake_at > self.now, "wakes in the past"
        before = dict(self.records)
        for change in decision.changes:
            if isinstance(change, Put):
                self.records[change.instance.id] = change.instance
            else:
                del self.records[change.id]
                self.facts.pop(change.id, None)
        self.facts.update(decision.facts)
        self.trend = decision.trend
        self.wake_at = decision.wake_at
        if decision.changes or not isinstance(events[0], ev.Woke):
            self.judge(before)
        self.check_wakes()
        if decision.changes or decision.effects or decision.facts:
            again = decide(self.view(), (), now=self.now, policy=self.policy, fresh_ids=ids)
            assert again.changes == (), f"the plan does not settle: {again.changes}"
            assert again.effects == (), f"the same is asked twice: {again.effects}"
            assert again.wake_at == decision.wake_at, f"wakes at {again.wake_at}, not {decision.wake_at}"
        for effect in decision.effects:
            self.effects[type(effect).__name__] += 1
            match effect:
                case CreateVm(id):
                    self.create(id)
                case CheckVm(id, provider_id):
                    self.check(id, provider_id)
                case DeleteVm(id, provider_id):
                    self.delete(id, provider_id)
                case DeleteDouble(id, provider_id):
                    self.delete_double(id, provider_id)
        return dict(decision.refusals)

    def listen(self) -> None:
        silent = expected = 0
        for vm in self.vms.values():
            record = self.records.get(vm.id)
            if record is None or record.state is not State.RUNNING or record.provider_id not in (None, vm.provider_id):
                continue
            expected += 1
            facts = self.facts.get(vm.id)
            if vm.connected and vm.agent == "up" and vm.state is VmState.RUNNING:
                vm.heard = self.now
                if facts is not None and facts.heard != self.now:
                    self.facts[vm.id] = replace(facts, heard=self.now)
            elif facts is not None and facts.vm is VmState.RUNNING and self.now - facts.heard > 10.0:
                silent += 1
        self.mass_silence = is_mass_silence(silent, expected, before=self.mass_silence)

    # -- invariants ----------------------------------------------------------------------------------------------------

    def gate_closed(self) -> bool:
        wish, trend = self.wish, self.trend
        return wish is not None and self.now < trend.retry_at and trend.infra_hash == wish.infra_hash

    def check_wakes(self) -> None:
        """Nothing that is pending may wait for chance: it has a timer, or an answer is under way."""
        wish = self.wish
        if not self.listed or self.mass_absence or self.blocked or (wish is not None and wish.paused):
            return
        due: list[float] = []
        timeout = wish.registration_timeout if wish is not None else 300.0
        for record in self.records.values():
            facts = self.facts.get(record.id, Facts(heard=self.listening))
            under_way = facts.creating or facts.checking or facts.deleting
            if record.state is State.DRAINING and record.drain is not None and not self.mass_silence:
                due.append(record.drain.deadline)
            elif record.state is State.PENDING and not facts.creating and self.now < record.created + timeout:
                due.append(facts.create_due)
            elif record.state in (State.PENDING, State.STARTING):
                due.append(max(record.created + timeout, self.listening + GRACE))
            elif record.state is State.DELETING and not under_way:
                due.append(self.now + 30.0)
            elif record.state is State.RUNNING and not under_way and not record.suspect:
                due.append(max(self.now + 10.0, facts.heard + 60.0, self.listening + 60.0))
            elif record.ended is not None:
                due.append(max(record.ended + self.policy.deleted_retention, self.now))
        if self.gate_closed() and len([r for r in self.records.values() if r.counts]) < (wish.size if wish else 0):
            due.append(self.trend.retry_at)
        if due:
            assert self.wake_at is not None, "pending work without a timer"
            assert self.wake_at <= max(self.now, min(due)) + 30.0 * self.mass_silence + 0.001, f"wakes late: {min(due)}"

    def judge(self, before: dict[InstanceId, Instance]) -> None:
        problems = violations(self.records)
        assert not problems, problems
        paused = self.wish is not None and self.wish.paused
        left: list[Instance] = []
        for id, record in self.records.items():
            old = before.get(id)
            if old is None:
                assert record.state in (State.PENDING, State.DELETING)
                assert not paused or record.cause is Cause.ORPHAN, "something new while paused"
                assert record.on_demand or record.state is State.DELETING or not self.gate_closed(), (
                    "the group was to back off"
                )
                continue
            if record.suspect and not old.suspect:
                met = self.facts[id].met
                assert met or self.now >= self.listening + GRACE, "suspect before it could reconnect"
                assert not self.mass_silence
            if record.state is State.DELETED and old.state is not State.DELETED:
                vm = self.vm_of(id, record.provider_id)
                assert vm is None or not vm.alive, "closed although its VM is there"
                assert id not in self.asked, "closed while its creation is under way"
            if old.state is not record.state:
                # Several steps may have been taken in one decision, each of them allowed.
                assert record.state in _reachable(old.state), f"{old.state} -> {record.state}"
                if record.state in (State.DRAINING, State.DELETING) and old.state in CAPACITY:
                    left.append(record)
                    self.check_cause(old, record)
        for id, old in before.items():
            if id not in self.records:
                assert old.state in (State.DELETED, State.FAILED), "a record was forgotten that had not ended"
        self.check_availability(before, left)
        self.check_places()
        for vm in self.vms.values():
            if vm.alive and vm.tagged and vm.id not in self.dead_ids:
                assert vm.id in self.records, f"{vm.id} has a VM but no record"

    def check_cause(self, old: Instance, record: Instance) -> None:
        """No healthy VM dies by accident: each cause must be true in the world."""
        vm = self.vm_of(record.id, record.provider_id)
        runs = vm is not None and vm.state is VmState.RUNNING
        wish = self.wish
        match record.cause:
            case Cause.GONE:
                assert not runs, "a VM that runs was taken for gone"
            case Cause.UNHEALTHY:
                assert vm is not None
                assert self.now - max(vm.heard, self.listening) >= self.policy.dead_after - 0.001, "given up too early"
                assert not self.mass_silence
            case Cause.SPOT:
                hint = old.state is State.RUNNING and vm is not None and vm.noticed
                assert hint, "no such notice"
            case Cause.SHUTDOWN:
                assert vm is not None
                assert NoticeKind.SHUTDOWN in vm.noticed
            case Cause.DRIFT:
                assert wish is not None
                assert old.infra_hash != wish.infra_hash
            case Cause.FORCED_EXPIRY:
                assert self.policy.forced_age is not None
                assert self.now >= old.created + self.policy.forced_age
            case Cause.ELIGIBLE_EXPIRY:
                assert self.policy.eligible_age is not None
                assert self.now >= old.created + self.policy.eligible_age
            case Cause.ONDEMAND_EXPIRY:
                assert old.on_demand
            case Cause.SCALE_DOWN:
                assert not old.on_demand
                counting = sum(r.counts for r in self.records.values())
                assert counting >= (wish.size if wish else 0), "scaled below the size"
            case Cause.UNREGISTERED:
                assert old.registered is None
                assert self.now >= old.created + 90.0 or wish is None
            case Cause.SUPERSEDED:
                assert old.registered is None or old.replaces is not None
            case Cause.REQUESTED:
                pass
            case cause:
                raise AssertionError(f"left for {cause}")
        if old.registered is not None and record.state is State.DELETING and record.cause is not Cause.REQUESTED:
            drains = wish.drain_timeout if wish else self.policy.default_drain_timeout
            if runs and drains > 0 and self.view().operator_seen is not None:
                done = self.now - (self.view().operator_seen or 0.0) > self.policy.operator_recent
                assert done or record.drain is not None, f"{record.cause}: no drain"
        if not self.listed:
            assert record.cause in (Cause.SPOT, Cause.SHUTDOWN, Cause.REQUESTED, Cause.SUPERSEDED), record.cause

    def check_availability(self, before: dict[InstanceId, Instance], left: list[Instance]) -> None:
        voluntary = [r for r in left if r.cause in VOLUNTARY and before[r.id].state is State.RUNNING]
        if not voluntary or self.wish is None:
            return
        ready = sum(r.counts and r.state is State.RUNNING and not r.suspect for r in self.records.values())
        assert ready >= self.wish.size - self.wish.max_unavailable, f"{ready} of {self.wish.size} after {voluntary}"

    def check_places(self) -> None:
        if self.wish is None or self.wish.paused or self.blocked:
            return
        counting = {r.id: r for r in self.records.values() if r.counts}
        assert all(r.state in (State.PENDING, State.STARTING, State.RUNNING) for r in counting.values())
        places = sum(r.replaces not in counting for r in counting.values())
        assert places >= self.wish.size or self.gate_closed(), f"{places} places for {self.wish.size}"
        if self.listed and not self.mass_absence:
            assert places <= self.wish.size, f"{places} places for {self.wish.size}"

    # -- the provider --------------------------------------------------------------------------------------------------

    def vm_of(self, id: InstanceId, provider_id: ProviderId | None) -> Vm | None:
        if provider_id is not None:
            return self.vms.get(provider_id)
        return next((v for v in self.vms.values() if v.id == id), None)

    def deliver(self, term: int, *events: ev.Event) -> None:
        if term == self.term:
            self.happen(*events)

    def create(self, id: InstanceId) -> None:
        assert self.records[id].state is State.PENDING, "asked for a VM without an intent"
        assert id not in self.asked, "asked for while it is being asked for"
        self.asked.add(id)
        term, rng = self.term, self.rng
        fate = "ok" if self.calm else rng.choices(FATES, FATE_WEIGHTS)[0]
        delay = 0.5 if self.calm else rng.choice((0.05, 1.0, 8.0))
        self.later(delay, lambda: self.answer_create(id, fate, term))

    def answer_create(self, id: InstanceId, fate: str, term: int) -> None:
        if term == self.term:
            self.asked.discard(id)
        if fate in ("ok", "lost") or self.vm_of(id, None) is not None:
            vm = self.apply_create(id)
            if vm is None:
                self.deliver(term, ev.VmCreateFailed(id, Failure.REFUSED, "was deleted"))
            elif fate == "ok":
                self.deliver(term, ev.VmCreated(id, vm.provider_id, seen=self.rng.random() < 0.5 and self.sees(vm)))
            else:
                self.deliver(term, ev.VmCreateFailed(id, Failure.UNKNOWN, "no answer"))
        elif fate == "late":
            self.late += 1
            self.later(self.rng.uniform(1.0, 100.0), partial(self.apply_late, id))
            self.deliver(term, ev.VmCreateFailed(id, Failure.UNKNOWN, "no answer"))
        else:
            self.deliver(term, ev.VmCreateFailed(id, Failure(fate), "no"))

    def apply_late(self, id: InstanceId) -> None:
        self.late -= 1
        self.apply_create(id, lags=False)

    def sees(self, vm: Vm) -> bool:
        return vm.visible_at <= self.now

    def apply_create(self, id: InstanceId, *, lags: bool = True) -> Vm | None:
        known = self.vm_of(id, None)
        if known is not None:
            return known if known.alive else None
        record = self.records.get(id)
        if record is None or record.ended is not None:
            self.dead_ids.add(id)  # it comes so late that it may outlive its record: collected as an orphan
        lag = 0.0 if self.calm or not lags else self.rng.choice((0.0, 0.0, 5.0, 60.0))
        vm = Vm(ProviderId(f"i-{len(self.vms)}"), id, self.now, self.now + lag)
        self.vms[vm.provider_id] = vm
        if self.chance(0.1):
            vm.agent = "never"
        elif self.chance(0.05):
            self.later(self.rng.uniform(1.0, 20.0), partial(self.fail, vm))
        self.later(5.0 if self.calm else self.rng.uniform(2.0, 40.0), lambda: self.register(vm))
        return vm

    def check(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        term = self.term
        self.later(0.2, lambda: self.deliver(term, self.look(id, provider_id)))

    def look(self, id: InstanceId, provider_id: ProviderId | None) -> ev.VmChecked:
        if self.chance(0.2):
            return ev.VmChecked(id, VmState.UNKNOWN)
        vm = self.vm_of(id, provider_id)
        if vm is None or not self.sees(vm):
            return ev.VmChecked(id, VmState.ABSENT)
        if vm.connected and vm.agent == "up" and vm.state is VmState.RUNNING and self.chance(0.2):
            return ev.VmChecked(id, VmState.ABSENT)  # a lie that the agent's voice gives away
        if not vm.alive and self.rng.random() < 0.5:
            return ev.VmChecked(id, VmState.ABSENT)
        return ev.VmChecked(id, vm.state, vm.provider_id)

    def delete(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        assert self.records[id].state is State.DELETING, "a deletion without a tombstone"
        assert self.listed, "a deletion before the listing"
        assert not self.mass_absence, "a deletion after a listing that looks wrong"
        term = self.term
        self.later(0.3 if self.calm else self.rng.choice((0.1, 2.0)), lambda: self.answer_delete(id, provider_id, term))

    def answer_delete(self, id: InstanceId, provider_id: ProviderId | None, term: int) -> None:
        vm = self.vm_of(id, provider_id)
        if self.chance(0.15):
            if vm is not None and self.rng.random() < 0.5:
                self.destroy(vm, VmState.DELETED)
            self.deliver(term, ev.VmDeleteFailed(id, "no answer"))
        elif vm is None or self.chance(0.1):
            self.deliver(term, ev.VmDeleted(id, final=False))  # and it keeps running, if it exists (F55)
        elif self.rng.random() < 0.5:
            self.destroy(vm, VmState.DOWN)
            self.later(10.0, lambda: self.destroy(vm, VmState.DELETED))
            self.deliver(term, ev.VmDeleted(id, final=False))
        else:
            self.destroy(vm, VmState.DELETED)
            self.deliver(term, ev.VmDeleted(id, final=True))

    def delete_double(self, id: InstanceId, provider_id: ProviderId) -> None:
        record = self.records[id]
        assert record.double == provider_id
        assert record.provider_id != provider_id
        if not self.chance(0.3):
            self.vms[provider_id].state = VmState.DELETED
            term = self.term
            self.later(0.1, lambda: self.deliver(term, ev.DoubleDeleted(id, provider_id)))

    def destroy(self, vm: Vm, state: VmState) -> None:
        if not vm.alive:
            return
        vm.state = state
        if vm.connected:
            vm.connected = False
            term = self.term
            self.later(self.rng.choice((0.1, 9.0)), partial(self.lose, vm, term))

    def lose(self, vm: Vm, term: int) -> None:
        if not vm.connected:
            self.deliver(term, ev.AgentLost(vm.id))

    def fail(self, vm: Vm) -> None:
        if not self.calm:
            self.destroy(vm, VmState.DOWN)

    def collect(self) -> None:
        self.later(GC, self.collect)
        if self.leading and not self.chance(0.1):
            self.list_vms()

    def list_vms(self) -> None:
        shown = [
            SeenVm(
                id=vm.id,
                provider_id=vm.provider_id,
                state=vm.state,
                cluster=CLUSTER,
                shard=SHARD,
                tenant=KEY.tenant if vm.tagged else None,
                group=KEY.name,
            )
            for vm in self.vms.values()
            if self.sees(vm) and (vm.alive or self.rng.random() < 0.3)
        ]
        if self.chance(0.05):
            shown = shown[: len(shown) // 2]  # a provider that lies
        result = compare(shown, self.records, self.sightings, cluster=CLUSTER, shard=SHARD)
        self.sightings = dict(result.sightings)
        self.listed = True
        self.mass_absence = result.mass_absence
        self.happen(*result.events.get(KEY, ()), ev.GroupChanged())

    # -- agents --------------------------------------------------------------------------------------------------------

    def register(self, vm: Vm) -> None:
        if vm.state is not VmState.RUNNING or vm.agent != "booting":
            return
        if not self.leading:
            self.later(3.0, lambda: self.register(vm))
            return
        registered = ev.Registered(
            id=vm.id, public_key=f"key-{vm.provider_id}", certificate_serial="1", certificate_expires=2e9
        )
        vm.agent = "up"
        if 0 in self.happen(registered):
            vm.agent = "never"
        else:
            self.connect(vm)

    def connect(self, vm: Vm) -> None:
        if self.leading and vm.agent == "up" and vm.state is VmState.RUNNING and not vm.connected:
            vm.connected, vm.heard = True, self.now
            notices = [ev.NoticeReceived(vm.id, kind, self.now + 60.0) for kind in vm.noticed if not self.calm]
            self.happen(ev.AgentConnected(vm.id), *notices)

    def reconnect(self, vm: Vm, term: int) -> None:
        if term == self.term:
            self.connect(vm)

    def lead(self) -> None:
        self.term += 1
        self.leading = True
        self.facts, self.trend, self.wake_at = {}, Trend(), None
        self.listed = self.mass_absence = self.mass_silence = False
        self.listening = self.now
        self.asked.clear()
        term = self.term
        for vm in self.vms.values():
            vm.connected = False
            if vm.agent == "up":
                delay = 1.0 if self.calm else self.rng.uniform(0.1, GRACE - 1.0)
                self.later(delay, partial(self.reconnect, vm, term))
        self.later(self.rng.uniform(0.1, 5.0), lambda: self.list_vms() if term == self.term and self.leading else None)
        self.happen(ev.GroupChanged())

    # -- what people and chance do -----------------------------------------------------------------------------------

    def running(self) -> list[Vm]:
        return [v for v in self.vms.values() if v.state is VmState.RUNNING and v.agent == "up"]

    def disturb(self) -> None:
        name = self.rng.choices(DISTURBANCES, WEIGHTS)[0]
        self.trace.append(f"{self.now - 1_000_000:.1f} {name}")
        getattr(self, f"do_{name}")()

    def do_nothing(self) -> None:
        self.advance(self.rng.choice((0.5, 5.0, 30.0, 100.0)))

    def do_scale(self) -> None:
        if self.wish is not None:
            self.wish = replace(self.wish, size=self.rng.randint(0, 4))
            self.happen(ev.GroupChanged())

    def do_drift(self) -> None:
        if self.wish is not None:
            self.hashes += 1
            self.wish = replace(self.wish, infra_hash=f"h{self.rng.randint(0, self.hashes)}")
            self.happen(ev.GroupChanged())

    def do_delete_group(self) -> None:
        self.wish = None
        self.happen(ev.GroupChanged())

    def do_create_group(self) -> None:
        if self.wish is None:
            self.wish = self.template
            self.happen(ev.GroupChanged())

    def do_pause(self) -> None:
        if self.wish is not None:
            self.wish = replace(self.wish, paused=not self.wish.paused)
            self.happen(ev.GroupChanged())

    def do_block(self) -> None:
        self.blocked = "" if self.blocked else "userdata"
        self.happen(ev.GroupChanged())

    def do_operator(self) -> None:
        self.operator = self.now if self.rng.random() < 0.7 else None

    def do_acknowledge(self) -> None:
        for record in list(self.records.values()):
            if self.rng.random() < 0.7:
                now = self.records.get(record.id)
                refused = self.happen(ev.DrainAcknowledged(record.id))
                draining = now is not None and now.state is State.DRAINING
                assert draining or not self.leading or refused[0] in (Refused.NOT_DRAINING, Refused.UNKNOWN)

    def do_hang(self) -> None:
        for vm in self.running()[: self.rng.choice((1, 1, 1, 4))]:
            vm.agent = "hung"
            if self.rng.random() < 0.5 and vm.connected:
                vm.connected = False
                self.later(self.rng.uniform(0.0, 10.0), partial(self.lose, vm, self.term))

    def do_restart_agent(self) -> None:
        for vm in self.running()[:1]:
            if vm.connected:
                vm.connected = False
                self.happen(ev.AgentRestarting(vm.id))
                if self.rng.random() < 0.7:
                    self.later(self.rng.uniform(1.0, 80.0), partial(self.connect, vm))

    def do_return(self) -> None:
        for vm in self.vms.values():
            if vm.agent == "hung" and self.rng.random() < 0.6:
                vm.agent, vm.connected = "up", False
                self.connect(vm)

    def do_destroy(self) -> None:
        alive = [v for v in self.vms.values() if v.state is VmState.RUNNING and v.tagged]
        for vm in self.rng.sample(alive, min(len(alive), self.rng.choice((1, 1, 4)))):
            self.destroy(vm, self.rng.choice((VmState.DOWN, VmState.DELETED)))

    def do_notice(self) -> None:
        for vm in self.running()[:1]:
            if vm.connected:
                kind = self.rng.choice(list(NoticeKind))
                vm.noticed.add(kind)
                self.happen(ev.NoticeReceived(vm.id, kind, self.now + self.rng.choice((0.0, 30.0, 120.0))))
                if kind is not NoticeKind.REBALANCE and self.rng.random() < 0.8:
                    self.later(self.rng.uniform(1.0, 60.0), partial(self.fail, vm))

    def do_change_leader(self) -> None:
        self.leading = False
        if self.rng.random() < 0.5:
            self.advance(self.rng.choice((0.5, 10.0, 200.0)))
        self.lead()

    def do_on_demand(self) -> None:
        id = self.maker.make(Kind("web"))
        self.happen(ev.InstanceWanted(id), ev.InstanceWanted(id))

    def do_request(self) -> None:
        if self.records:
            id = self.rng.choice(list(self.records))
            self.happen(ev.DeletionWanted(id) if self.rng.random() < 0.5 else ev.ReplacementWanted(id))

    def do_orphan(self) -> None:
        vm = Vm(ProviderId(f"i-{len(self.vms)}"), self.maker.make(Kind("web")), self.now, self.now, agent="never")
        vm.tagged = self.rng.random() < 0.7
        self.dead_ids.add(vm.id)
        self.vms[vm.provider_id] = vm

    def do_double(self) -> None:
        known = [r for r in self.records.values() if r.provider_id is not None and r.double is None and r.counts]
        if known:
            record = self.rng.choice(known)
            self.dead_ids.add(record.id)
            vm = Vm(ProviderId(f"i-{len(self.vms)}"), record.id, self.now, self.now, agent="never")
            self.vms[vm.provider_id] = vm

    def do_nonsense(self) -> None:
        """Events for instances that nobody knows, or in states where they make no sense."""
        id = self.maker.make(Kind("web"))
        known = self.rng.choice([id, *self.records])
        absent = known if known == id or self.records[known].state is State.PENDING else id
        self.happen(
            ev.VmDeleteFailed(id, "?"),
            ev.VmMissed(known),
            ev.VmChecked(absent, VmState.ABSENT),
            ev.VmChecked(known, VmState.UNKNOWN),
            ev.NoticeReceived(id, NoticeKind.SPOT),
            ev.AgentLost(id),
            ev.DoubleDeleted(known, ProviderId("i-none")),
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        self.calm = True
        self.policy = replace(self.policy, eligible_age=None, forced_age=None, ondemand_age=None)
        self.blocked = ""
        self.wish = replace(self.wish or self.template, paused=False)
        self.lead()
        for vm in list(self.vms.values()):
            if vm.agent == "hung":
                vm.agent = "up"
                self.connect(vm)
        until = self.now + 6000.0
        while not self.at_rest():
            assert self.now < until, self.story()
            self.advance(20.0)
            self.acknowledge_all()
        effects = self.effects["CreateVm"], self.effects["DeleteVm"]
        records = {r.id for r in self.records.values() if r.state is State.RUNNING}
        self.advance(150.0)
        assert (self.effects["CreateVm"], self.effects["DeleteVm"]) == effects, f"no rest: {self.story()}"
        assert {r.id for r in self.records.values() if r.state is State.RUNNING} == records
        assert all(v.alive for v in self.vms.values() if not v.tagged), "a VM of somebody else was deleted"

    def acknowledge_all(self) -> None:
        for record in list(self.records.values()):
            if record.state is State.DRAINING:
                self.happen(ev.DrainAcknowledged(record.id))

    def at_rest(self) -> bool:
        assert self.wish is not None
        open_states = (State.PENDING, State.STARTING, State.DRAINING, State.DELETING)
        if any(r.state in open_states or (r.suspect and r.counts) or r.double for r in self.records.values()):
            return False
        members = [r for r in self.records.values() if r.counts]
        if len(members) != self.wish.size or any(m.infra_hash != self.wish.infra_hash for m in members):
            return False
        if self.late or any(v.state is VmState.DOWN for v in self.vms.values()):
            return False
        mine = sorted(v.provider_id for v in self.vms.values() if v.alive and v.tagged)
        return mine == sorted(r.provider_id or "" for r in self.records.values() if r.state is State.RUNNING)

    def story(self) -> str:
        records = "\n".join(f"  {r}\n    {self.facts.get(r.id)}" for r in self.records.values())
        vms = "\n".join(f"  {v}" for v in self.vms.values() if v.alive)
        trace = "\n".join(f"  {t}" for t in self.trace)
        where = (
            f"{self.now - 1e6:.1f} wake {self.wake_at} trend {self.trend} mass {self.mass_silence} {self.mass_absence}"
        )
        return f"{where} wish {self.wish}\n{trace}\nrecords:\n{records}\nVMs:\n{vms}"


FATES = ["ok", "lost", "late", "no-capacity", "refused", "unavailable", "unknown-outcome"]
FATE_WEIGHTS = [60, 8, 6, 5, 5, 5, 5]
DISTURBANCES = [name.removeprefix("do_") for name in vars(World) if name.startswith("do_")]
WEIGHTS = [
    30 if d == "nothing" else 1 if d in ("delete_group", "pause", "block", "double") else 3 for d in DISTURBANCES
]


def _reachable(state: State) -> set[State]:
    reached, todo = {state}, [state]
    while todo:
        for following in TRANSITIONS[todo.pop()] - reached:
            reached.add(following)
            todo.append(following)
    return reached


def walk(seed: int) -> World:
    world = World(seed)
    try:
        for _ in range(world.rng.randint(5, 32)):
            world.disturb()
        world.settle()
    except AssertionError as problem:
        raise AssertionError(f"seed {seed}: {problem}\n{world.story()}") from problem
    return world


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_walks(chunk: int) -> None:
    effects: Counter[str] = Counter()
    for seed in range(FIRST + chunk, FIRST + WALKS, CHUNKS):
        effects += walk(seed).effects
    # What never happened was not tested.
    assert all(effects[e.__name__] for e in (CreateVm, CheckVm, DeleteVm, DeleteDouble)), effects
