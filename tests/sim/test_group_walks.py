"""Random walks of a group through a test world in virtual time.

The provider loses answers, applies creates late, answers wrongly about deletions and lists with a lag; agents become
unresponsive and return; people scale, pause, change configurations and destroy VMs by hand; leaders change, so that only
the records remain. The invariants are checked after each decision; when the faults stop, the group must settle at its
size and stay there.

NSTANCE_WALKS sets how many walks are done, NSTANCE_WALK_SEED which is the first.
"""

import os
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from nstance.core import rollout
from nstance.core.inventory import UNKNOWN_AT_LEAST
from nstance.model import events as ev
from nstance.model.decision import CheckVm, CreateVm, DeleteDuplicateVm, DeleteVm, Rejection
from nstance.model.events import NoticeKind, VmState
from nstance.model.ids import Kind, ProviderId
from nstance.model.instance import State
from nstance.model.rollout import Outcome
from unit.core.core_world import Vm, World

WALKS = int(os.environ.get("NSTANCE_WALKS", "200"))
FIRST = int(os.environ.get("NSTANCE_WALK_SEED", "0"))
CHUNKS = 4


class Walk(World):
    def running(self) -> list[Vm]:
        return [v for v in self.vms.values() if v.state is VmState.RUNNING and v.agent == "up"]

    def disturb(self) -> None:
        name = self.rng.choices(DISTURBANCES, WEIGHTS)[0]
        self.trace.append(f"{self.now - 1_000_000:.1f} {name}")
        getattr(self, f"do_{name}")()

    def do_nothing(self) -> None:
        self.advance(self.rng.choice((0.5, 5.0, 30.0, 100.0)))

    def do_scale(self) -> None:
        if self.desired is not None:
            self.desired = replace(self.desired, size=self.rng.randint(0, 4))
            self.happen(ev.GroupChanged())

    def do_drift(self) -> None:
        if self.desired is not None:
            self.hashes += 1
            self.desired = replace(self.desired, infra_hash=f"h{self.rng.randint(0, self.hashes)}", rolled_back_from="")
            self.happen(ev.GroupChanged())

    def do_spoil(self) -> None:
        """A revision whose instances never become ready; somebody may roll it back."""
        if self.desired is not None:
            self.hashes += 1
            self.bad_hashes.add(f"h{self.hashes}")
            self.desired = replace(self.desired, infra_hash=f"h{self.hashes}", rolled_back_from="")
            self.happen(ev.GroupChanged())

    def do_roll_back(self) -> None:
        complete = self.record.last_complete() if self.record is not None else None
        if self.desired is not None and complete is not None:
            self.desired = replace(
                self.desired, infra_hash=complete.infra_hash, rolled_back_from=self.desired.infra_hash
            )
            self.happen(ev.GroupChanged())

    def do_resume_rollout(self) -> None:
        self.happen(ev.RolloutResumed())

    def do_fail_checks(self) -> None:
        for vm in self.running()[: self.rng.choice((1, 1, 4))]:
            vm.unready = self.rng.choice(("failing", "failing", ""))
            self.report(vm, self.term)

    def do_lose_secret(self) -> None:
        self.files_missing = not self.files_missing
        self.report_all()

    def do_delete_group(self) -> None:
        self.desired = None
        self.happen(ev.GroupChanged())

    def do_create_group(self) -> None:
        if self.desired is None:
            self.desired = self.template
            self.happen(ev.GroupChanged())

    def do_pause(self) -> None:
        if self.desired is not None:
            self.desired = replace(self.desired, paused=not self.desired.paused)
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
                assert draining or not self.leading or refused[0] in (Rejection.NOT_DRAINING, Rejection.UNKNOWN)

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
        self.happen(ev.InstanceRequested(id), ev.InstanceRequested(id))

    def do_request(self) -> None:
        if self.records:
            id = self.rng.choice(list(self.records))
            self.happen(ev.DeletionRequested(id) if self.rng.random() < 0.5 else ev.ReplacementRequested(id))

    def do_orphan(self) -> None:
        if sum(v.alive and v.tagged and v.id not in self.records for v in self.vms.values()) >= UNKNOWN_AT_LEAST:
            return  # more of them wait for a person
        vm = Vm(ProviderId(f"i-{len(self.vms)}"), self.maker.make(Kind("web")), self.now, self.now, agent="never")
        vm.tagged = self.rng.random() < 0.7
        self.dead_ids.add(vm.id)
        self.vms[vm.provider_id] = vm

    def do_double(self) -> None:
        known = [r for r in self.records.values() if r.provider_id is not None and r.duplicate_vm is None and r.counts]
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
            ev.VmMissingFromListing(known),
            ev.VmChecked(absent, VmState.ABSENT),
            ev.VmChecked(known, VmState.UNKNOWN),
            ev.NoticeReceived(id, NoticeKind.SPOT),
            ev.AgentLost(id),
            ev.DuplicateVmDeleted(known, ProviderId("i-none")),
        )

    def settle(self) -> None:
        self.calm = True
        self.policy = replace(self.policy, eligible_age=None, forced_age=None, ondemand_age=None)
        self.blocked = ""
        self.files_missing = False
        self.bad_hashes.clear()
        for vm in self.vms.values():
            vm.unready = ""
        self.desired = replace(self.desired or self.template, paused=False)
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
            if self.record is not None and self.record.current and self.record.current.outcome in rollout.HELD:
                self.happen(ev.RolloutResumed())
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
        assert self.desired is not None
        open_states = (State.PENDING, State.STARTING, State.DRAINING, State.DELETING)
        if any(r.state in open_states or (r.suspect and r.counts) or r.duplicate_vm for r in self.records.values()):
            return False
        members = [r for r in self.records.values() if r.counts]
        if len(members) != self.desired.size or any(m.infra_hash != self.desired.infra_hash for m in members):
            return False
        if any(not (f := self.observed.get(m.id)) or not f.agent.ready or m.ready_at is None for m in members):
            return False
        if self.desired.size and (self.record is None or self.record.current is None):
            return False
        if self.desired.size and self.record.current.outcome is not Outcome.COMPLETE:  # type: ignore[union-attr]
            return False
        if self.late or any(v.state is VmState.DOWN for v in self.vms.values()):
            return False
        mine = sorted(v.provider_id for v in self.vms.values() if v.alive and v.tagged)
        return mine == sorted(r.provider_id or "" for r in self.records.values() if r.state is State.RUNNING)


DISTURBANCES = [name.removeprefix("do_") for name in vars(Walk) if name.startswith("do_")]
WEIGHTS = [
    30 if d == "nothing" else 1 if d in ("delete_group", "pause", "block", "double") else 3 for d in DISTURBANCES
]


def walk(seed: int) -> Walk:
    world = Walk(seed)
    try:
        for _ in range(world.rng.randint(5, 32)):
            world.disturb()
        world.settle()
    except AssertionError as problem:
        raise AssertionError(f"seed {seed}: {problem}\n{world.story()}") from problem
    return world


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_walks_keep_the_invariants_and_settle(chunk: int) -> None:
    effects: Counter[str] = Counter()
    for seed in range(FIRST + chunk, FIRST + WALKS, CHUNKS):
        effects += walk(seed).effects
    # What never happened was not tested.
    assert all(effects[e.__name__] for e in (CreateVm, CheckVm, DeleteVm, DeleteDuplicateVm)), effects
