"""Invariants after each decision, stated independently of the code and checked against the test world."""

from typing import TYPE_CHECKING

from nstance.model.consistency import violations
from nstance.model.events import NoticeKind, VmState
from nstance.model.group import Preference
from nstance.model.ids import InstanceId
from nstance.model.instance import CAPACITY, Cause, Instance, State, reachable
from unit.core import core_limits
from unit.core.core_situation import observation

if TYPE_CHECKING:
    from unit.core.core_world import World


def check_wakes(world: "World") -> None:
    """Everything unfinished has a timer or a call under way."""
    desired = world.desired
    if not world.listed or world.mass_absence or world.blocked or (desired is not None and desired.paused):
        return
    due: list[float] = []
    timeout = desired.registration_timeout if desired is not None else 300.0
    # The record of an instance says why its place is empty until that is filled.
    unfilled = [r for r in world.records.values() if r.vacant or r.state in (State.PENDING, State.STARTING)]
    kept = {r.id for r in unfilled if r.vacant} | {r.replaces or r.predecessor for r in unfilled}
    for record in world.records.values():
        observed = world.observed.get(record.id, observation(last_seen=world.listening))
        under_way = observed.calls.creating or observed.calls.checking or observed.calls.deleting
        if record.state is State.DRAINING and record.drain is not None and not world.mass_silence:
            due.append(record.drain.deadline)
        elif record.state is State.PENDING and not observed.calls.creating and world.now < record.created + timeout:
            due.append(observed.calls.create_due)
        elif record.state in (State.PENDING, State.STARTING):
            due.append(max(record.created + timeout, world.listening + world.grace))
        elif record.state is State.DELETING and not under_way:
            due.append(world.now + 30.0)
        elif record.state is State.RUNNING and not under_way and not record.suspect:
            due.append(max(world.now + 10.0, observed.agent.last_seen + 60.0, world.listening + 60.0))
        elif record.ended is not None and record.id not in kept:
            due.append(max(record.ended + world.policy.deleted_retention, world.now))
    if world.gate_closed() and len([r for r in world.records.values() if r.counts]) < (desired.size if desired else 0):
        due.append(world.gate_opens())
    if due:
        assert world.wake_at is not None, "pending work without a timer"
        assert world.wake_at <= max(world.now, min(due)) + 30.0 * world.mass_silence + 0.001, f"wakes late: {min(due)}"


def judge(world: "World", before: dict[InstanceId, Instance]) -> None:
    problems = violations(world.records)
    assert not problems, problems
    paused = world.desired is not None and world.desired.paused
    left: list[Instance] = []
    for id, record in world.records.items():
        old = before.get(id)
        if old is None:
            assert record.state in (State.PENDING, State.DELETING)
            assert not paused or record.cause is Cause.ORPHAN, "something new while paused"
            assert record.on_demand or record.state is State.DELETING or not world.gate_closed(record.infra_hash), (
                "the group was to back off"
            )
            continue
        if record.suspect and not old.suspect:
            met = world.observed[id].agent.seen_this_term
            assert met or world.now >= world.listening + world.grace, "suspect before it could reconnect"
            assert not world.mass_silence
        if record.state is State.DELETED and old.state is not State.DELETED:
            vm = world.vm_of(id, record.provider_id)
            assert vm is None or not vm.alive, "closed although its VM is there"
            assert id not in world.asked, "closed while its creation is under way"
        if old.state is not record.state:
            # Several steps may have been taken in one decision, each of them allowed.
            assert record.state in reachable(old.state), f"{old.state} -> {record.state}"
            if record.state in (State.DRAINING, State.DELETING) and old.state in CAPACITY:
                left.append(record)
                check_cause(world, old, record)
    for id, old in before.items():
        if id not in world.records:
            assert old.state in (State.DELETED, State.FAILED), "a record was forgotten that had not ended"
    check_places(world)
    for vm in world.vms.values():
        if vm.alive and vm.tagged and vm.id not in world.dead_ids:
            assert vm.id in world.records, f"{vm.id} has a VM but no record"


def check_cause(world: "World", old: Instance, record: Instance) -> None:
    """No healthy VM is deleted by mistake: each cause must be true in the test world."""
    vm = world.vm_of(record.id, record.provider_id)
    runs = vm is not None and vm.state is VmState.RUNNING
    desired = world.desired
    match record.cause:
        case Cause.GONE:
            assert not runs, "a VM that runs was taken for gone"
        case Cause.UNHEALTHY:
            assert vm is not None
            assert not world.mass_silence
            if not _is_unready(world, old):
                silent = world.now - max(vm.last_seen, world.listening)
                assert silent >= world.policy.dead_after - 0.001, "given up too early"
        case Cause.SPOT:
            hint = old.state is State.RUNNING and vm is not None and vm.noticed
            assert hint, "no such notice"
        case Cause.SHUTDOWN:
            assert vm is not None
            assert NoticeKind.SHUTDOWN in vm.noticed
        case Cause.DRIFT:
            assert desired is not None
            assert old.infra_hash != desired.infra_hash
        case Cause.FORCED_EXPIRY:
            assert world.policy.forced_age is not None
            assert world.now >= old.created + world.policy.forced_age
        case Cause.ELIGIBLE_EXPIRY:
            assert world.policy.eligible_age is not None
            assert world.now >= old.created + world.policy.eligible_age
        case Cause.PREFERENCE:
            assert desired is not None
            assert desired.prefer is Preference.STRICT
            assert (old.market, old.instance_type) != (desired.markets[0], desired.instance_types[0])
        case Cause.ONDEMAND_EXPIRY:
            assert old.on_demand
        case Cause.SCALE_DOWN:
            assert not old.on_demand
            counting = sum(r.counts or core_limits.is_leaving(world, r) for r in world.records.values())
            assert counting >= (desired.size if desired else 0), "scaled below the size"
        case Cause.UNREGISTERED:
            assert old.registered is None
            assert world.now >= old.created + 90.0 or desired is None
        case Cause.SUPERSEDED:
            assert old.registered is None or old.replaces is not None
        case Cause.REQUESTED:
            pass
        case cause:
            raise AssertionError(f"left for {cause}")
    if old.registered is not None and record.state is State.DELETING and record.cause is not Cause.REQUESTED:
        unwished = world.policy.default_drain_timeout if old.drain_timeout is None else old.drain_timeout
        drains = desired.drain_timeout if desired else unwished
        if runs and drains > 0 and world.view().operator_seen is not None:
            done = world.now - (world.view().operator_seen or 0.0) > world.policy.operator_recent
            assert done or record.drain is not None, f"{record.cause}: no drain"
    if not world.listed:
        assert record.cause in (Cause.SPOT, Cause.SHUTDOWN, Cause.REQUESTED, Cause.SUPERSEDED), record.cause


def check_places(world: "World") -> None:
    if world.desired is None or world.desired.paused or world.blocked:
        return
    counting = {r.id: r for r in world.records.values() if r.counts}
    assert all(r.state in (State.PENDING, State.STARTING, State.RUNNING) for r in counting.values())
    places = sum(r.replaces not in counting for r in counting.values())
    waits = world.gate_closed() or world.awaits_listing()
    # The place of one that left first is filled when its VM is gone.
    left_first = sum(core_limits.is_leaving(world, r) for r in world.records.values())
    assert places + left_first >= world.desired.size or waits, f"{places} places for {world.desired.size}"
    if world.listed and not world.mass_absence:
        assert places <= world.desired.size, f"{places} places for {world.desired.size}"


def _is_unready(world: "World", old: Instance) -> bool:
    """Its agent is connected, and it is not ready for longer than allowed."""
    agent, desired = world.observed[old.id].agent, world.desired
    if agent.ready or agent.blocked or not agent.connected or desired is None or old.registered is None:
        return False
    failing = agent.failing_since if desired.unhealthy_after is not None else None
    if failing is not None and world.now >= failing + (desired.unhealthy_after or 0.0) - 0.001:
        return True
    since = max(old.registered + desired.ready_timeout, world.listening + world.grace)
    return old.ready_at is None and world.now >= since - 0.001
