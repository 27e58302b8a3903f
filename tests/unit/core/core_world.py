"""A test world around `decide` in virtual time: a shard that commits and acts, a provider, agents and leaders.

The provider loses answers, applies creates late, answers wrongly about deletions and lists with a lag; agents register, become
unresponsive and return; when the leader changes, only the records remain.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from nstance.core import offers
from nstance.core.adopting import FIRST_LISTING_SECONDS
from nstance.core.decide import decide
from nstance.core.inventory import Scope, Sightings, compare
from nstance.core.liveness import is_mass_silence
from nstance.core.rollout import fallback_revisions
from nstance.model import events as ev
from nstance.model.decision import CheckVm, CreateVm, DeleteDuplicateVm, DeleteVm, Fallback, Rejection, Trend, View
from nstance.model.events import Failure, NoticeKind, VmState
from nstance.model.group import Group, Policy, UpdateOrder
from nstance.model.ids import ClusterId, GroupKey, GroupName, IdMaker, InstanceId, Kind, ProviderId, ShardId, TenantId
from nstance.model.instance import Instance, Put, State
from nstance.model.observation import Observation, last_seen_at
from nstance.model.offer import CapacityKey, Exhaustion
from nstance.model.rollout import GroupRecord
from nstance.model.vm import SeenVm
from unit.core import core_invariants, core_limits, core_shortcut

KEY = GroupKey(TenantId("default"), GroupName("web"))
CLUSTER, SHARD = ClusterId("c"), ShardId("s")
GC = 60.0
PING = 4.0
FATES = ["ok", "lost", "late", "no-capacity", "refused", "unavailable", "unknown-outcome", "unsent"]
FATE_WEIGHTS = [60, 8, 6, 5, 5, 5, 5, 6]


@dataclass(slots=True)
class Vm:
    provider_id: ProviderId
    id: InstanceId
    made: float
    visible_at: float
    state: VmState = VmState.RUNNING
    agent: str = "booting"  # never, up, hung
    connected: bool = False
    last_seen: float = -1.0  # when a leader last received something from its agent
    noticed: set[NoticeKind] = field(default_factory=set)
    tagged: bool = True
    unready: str = ""  # never, failing

    @property
    def alive(self) -> bool:
        return self.state is not VmState.DELETED


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.now = 1_000_000.0
        self.grace = 40.0  # for agents to come back to a new leader
        self.calm = False
        self.thorough = seed % 5 == 0
        self.policy = Policy(
            suspect_after=10.0,
            dead_after=60.0,
            deleted_retention=rng.choice((200.0, 1800.0)),
            eligible_age=rng.choice((None, None, 400.0)),
            forced_age=rng.choice((None, None, 500.0)),
            ondemand_age=rng.choice((None, 300.0)),
        )
        self.desired: Group | None = Group(
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
            order=rng.choice((UpdateOrder.PARALLEL, UpdateOrder.PARALLEL, UpdateOrder.SERIAL)),
            settle=rng.choice((0.0, 15.0)),
            canary=rng.choice((0, 0, 1, 2)),
            pause_after_canary=rng.choice((None, 30.0)),
            max_failures=rng.choice((1, 2, 20)),
            ready_timeout=100.0,
            unhealthy_after=rng.choice((None, 30.0)),
        )
        self.bad_hashes: set[str] = set()  # revisions whose instances never become ready
        self.revisions_lost = seed % 7 == 0  # the specs of earlier revisions
        self.files_missing = False  # a secret that all file sets need
        self.record: GroupRecord | None = None
        self.template = self.desired
        self.records: dict[InstanceId, Instance] = {}
        self.observed: dict[InstanceId, Observation] = {}
        self.trend = Trend()
        self.exhausted: Mapping[CapacityKey, Exhaustion] = {}
        self.vms: dict[ProviderId, Vm] = {}
        self.dead_ids: set[InstanceId] = set()
        self.maker = IdMaker(wall=lambda: self.now, bits=lambda n: rng.getrandbits(n))
        self.sightings: Sightings = {}
        self.term = 0
        self.leading = False
        self.listed = False
        self.mass_absence = False
        self.mass_silence = False
        self.mass_since: float | None = None
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
        self.late = 0  # creates that the provider has yet to apply, also those of former leaders
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
                self.happen(ev.TimerFired())
        self.now = end

    def happens(self, probability: float) -> bool:
        return not self.calm and self.rng.random() < probability

    # -- the shell around the decision ---------------------------------------------------------------------------------

    def view(self) -> View:
        return View(
            key=KEY,
            desired=self.desired,
            members=self.records,
            observations=self.observed,
            trend=self.trend,
            record=self.record,
            listed=self.listed,
            listening_since=self.listening,
            reconnect_grace=self.grace,
            mass_silence=self.mass_silence,
            mass_absence=self.mass_absence,
            mass_since=self.mass_since,
            operator_seen=self.now if self.calm else self.operator,
            blocked=self.blocked,
            fallback=self.fallback(),
            exhausted=self.exhausted,
        )

    def fallback(self) -> Fallback | None:
        target = next(iter(fallback_revisions(self.record, self.desired)), None)
        if target is None or self.desired is None or self.revisions_lost:
            return None
        return Fallback(replace(self.desired, infra_hash=target))

    def happen(self, *events: ev.Event) -> dict[int, Rejection]:
        if not self.leading:
            return {}
        if self.happens(0.05):
            events = (*events, self.rng.choice(events))
        self.listen()
        ids = iter(lambda: self.maker.make(Kind("web")), None)
        decision = decide(self.view(), events, now=self.now, policy=self.policy, fresh_ids=ids)
        if self.thorough:
            core_shortcut.compare(decision, self.view(), events, now=self.now, policy=self.policy)
        assert decision.wake_at is None or decision.wake_at > self.now, "wakes in the past"
        before, record_before = dict(self.records), self.record
        for change in decision.changes:
            if isinstance(change, Put):
                self.records[change.instance.id] = change.instance
            else:
                del self.records[change.id]
                self.observed.pop(change.id, None)
        self.observed.update(decision.observations)
        self.trend = decision.trend
        if decision.exhausted is not None:
            self.exhausted = decision.exhausted
        if decision.record is not None:
            self.record = None if decision.record.is_empty else decision.record
        self.wake_at = decision.wake_at
        if decision.changes or not isinstance(events[0], ev.TimerFired):
            core_invariants.judge(self, before)
            if not any(isinstance(event, ev.RolloutResumed) for event in events):
                core_limits.judge(self, before, record_before)
        core_invariants.check_wakes(self)
        if decision.changes or decision.effects or decision.observations:
            again = decide(self.view(), (), now=self.now, policy=self.policy, fresh_ids=ids)
            assert again.changes == (), f"the plan does not settle: {again.changes}"
            assert again.record is None, f"the record does not settle: {again.record}"
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
                case DeleteDuplicateVm(id, provider_id):
                    self.delete_double(id, provider_id)
        return dict(decision.rejections)

    def listen(self) -> None:
        silent = expected = 0
        for vm in self.vms.values():
            record = self.records.get(vm.id)
            if record is None or record.state is not State.RUNNING or record.provider_id not in (None, vm.provider_id):
                continue
            expected += 1
            observed = self.observed.get(vm.id)
            if vm.connected and vm.agent == "up" and vm.state is VmState.RUNNING:
                if observed is not None and self.now - observed.agent.last_seen > PING:
                    vm.last_seen = self.now
                    self.observed[vm.id] = last_seen_at(observed, self.now)
            elif (
                observed is not None
                and observed.vm.state is VmState.RUNNING
                and self.now - observed.agent.last_seen > 10.0
            ):
                silent += 1
        self.mass_silence = is_mass_silence(silent, expected, before=self.mass_silence)
        if not self.mass_silence and not self.mass_absence:
            self.mass_since = None
        elif self.mass_since is None:
            self.mass_since = self.now

    def gate_closed(self, infra_hash: str | None = None) -> bool:
        return self.gate_opens(infra_hash) > self.now

    def gate_opens(self, infra_hash: str | None = None) -> float:
        """When an instance of this revision may be created; without one, of that which the next instance has."""
        desired, trend = self.desired, self.trend
        if desired is None:
            return self.now
        revision = infra_hash or core_limits.next_revision(self)
        has_capacity = offers.retry_at(replace(desired, infra_hash=revision), self.exhausted, self.now)
        return max(has_capacity, trend.retry_at if trend.infra_hash == revision else self.now)

    def awaits_listing(self) -> bool:
        """VMs that are to be adopted may be there: none is created yet for the size alone."""
        return not self.listed and self.now < self.listening + FIRST_LISTING_SECONDS

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
        self.late += 1
        term, rng = self.term, self.rng
        fate = "ok" if self.calm else rng.choices(FATES, FATE_WEIGHTS)[0]
        delay = 0.5 if self.calm else rng.choice((0.05, 1.0, 8.0))
        self.later(delay, lambda: self.answer_create(id, fate, term))

    def answer_create(self, id: InstanceId, fate: str, term: int) -> None:
        self.late -= 1
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
        if record is not None and (record.infra_hash in self.bad_hashes or self.happens(0.05)):
            vm.unready = "never"
        if self.happens(0.1):
            vm.agent = "never"
        elif self.happens(0.05):
            self.later(self.rng.uniform(1.0, 20.0), partial(self.fail, vm))
        self.later(5.0 if self.calm else self.rng.uniform(2.0, 40.0), lambda: self.register(vm))
        return vm

    def check(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        term = self.term
        self.later(0.2, lambda: self.deliver(term, self.look(id, provider_id)))

    def look(self, id: InstanceId, provider_id: ProviderId | None) -> ev.VmChecked:
        if self.happens(0.2):
            return ev.VmChecked(id, VmState.UNKNOWN)
        vm = self.vm_of(id, provider_id)
        if vm is None or not self.sees(vm):
            return ev.VmChecked(id, VmState.ABSENT)
        if vm.connected and vm.agent == "up" and vm.state is VmState.RUNNING and self.happens(0.2):
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
        if self.happens(0.15):
            if vm is not None and self.rng.random() < 0.5:
                self.destroy(vm, VmState.DELETED)
            self.deliver(term, ev.VmDeleteFailed(id, "no answer"))
        elif vm is None or self.happens(0.1):
            self.deliver(term, ev.VmDeleted(id, final=False))  # and it keeps running, if it exists
        elif self.rng.random() < 0.5:
            self.destroy(vm, VmState.DOWN)
            self.later(10.0, lambda: self.destroy(vm, VmState.DELETED))
            self.deliver(term, ev.VmDeleted(id, final=False))
        else:
            self.destroy(vm, VmState.DELETED)
            self.deliver(term, ev.VmDeleted(id, final=True))

    def delete_double(self, id: InstanceId, provider_id: ProviderId) -> None:
        record = self.records[id]
        assert record.duplicate_vm == provider_id
        assert record.provider_id != provider_id
        if not self.happens(0.3):
            self.vms[provider_id].state = VmState.DELETED
            term = self.term
            self.later(0.1, lambda: self.deliver(term, ev.DuplicateVmDeleted(id, provider_id)))

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
        if self.leading and not self.happens(0.1):
            self.list_vms()

    def list_vms(self) -> None:
        shown = [
            SeenVm(
                id=vm.id,
                provider_id=vm.provider_id,
                state=vm.state,
                ip4=vm.provider_id,
                cluster=CLUSTER,
                shard=SHARD,
                tenant=KEY.tenant if vm.tagged else None,
                group=KEY.name,
            )
            for vm in self.vms.values()
            if self.sees(vm) and (vm.alive or self.rng.random() < 0.3)
        ]
        if self.happens(0.05):
            shown = shown[: len(shown) // 2]  # a provider that lies
        addresses = {vm.id: str(vm.provider_id) for vm in self.vms.values() if vm.connected}
        scope = Scope(cluster=CLUSTER, shard=SHARD, agent_addresses=addresses, delete_unknown=True)
        result = compare(shown, self.records, self.sightings, scope)
        self.sightings = result.sightings
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
            vm.connected, vm.last_seen = True, self.now
            notices = [ev.NoticeReceived(vm.id, kind, self.now + 60.0) for kind in vm.noticed if not self.calm]
            self.happen(ev.AgentConnected(vm.id), *notices)
            self.later(0.5 if self.calm else self.rng.choice((0.1, 3.0)), partial(self.report, vm, self.term))

    def report(self, vm: Vm, term: int) -> None:
        if vm.connected and vm.agent == "up":
            blocked = "a secret is missing" if self.files_missing else ""
            failing = ("check",) if vm.unready == "failing" else ()
            files = not blocked and vm.unready != "never"
            self.deliver(term, ev.ReadinessReported(vm.id, files=files, failing=failing, blocked=blocked))

    def report_all(self) -> None:
        for vm in list(self.vms.values()):
            self.report(vm, self.term)

    def reconnect(self, vm: Vm, term: int) -> None:
        if term == self.term:
            self.connect(vm)

    def lead(self) -> None:
        self.term += 1
        self.leading = True
        self.observed, self.trend, self.exhausted, self.wake_at = {}, Trend(), {}, None
        self.listed = self.mass_absence = self.mass_silence = False
        self.mass_since = None
        self.listening = self.now
        self.asked.clear()
        term = self.term
        for vm in self.vms.values():
            vm.connected = False
            if vm.agent == "up":
                delay = 1.0 if self.calm else self.rng.uniform(0.1, self.grace - 1.0)
                self.later(delay, partial(self.reconnect, vm, term))
        self.later(self.rng.uniform(0.1, 5.0), lambda: self.list_vms() if term == self.term and self.leading else None)
        self.happen(ev.GroupChanged())

    def story(self) -> str:
        records = "\n".join(f"  {r}\n    {self.observed.get(r.id)}" for r in self.records.values())
        vms = "\n".join(f"  {v}" for v in self.vms.values() if v.alive)
        trace = "\n".join(f"  {t}" for t in self.trace)
        where = (
            f"{self.now - 1e6:.1f} wake {self.wake_at} trend {self.trend} mass {self.mass_silence} {self.mass_absence}"
        )
        return f"{where} desired {self.desired}\n{self.record}\n{trace}\nrecords:\n{records}\nVMs:\n{vms}"
