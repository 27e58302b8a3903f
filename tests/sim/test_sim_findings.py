"""Bugs that the simulator found, each as a short schedule: a seed plays out differently after every change of the code,
these do not."""

import dataclasses

import pytest

from nstance.config import storage_keys
from nstance.model import events as ev
from nstance.model.group import Preference
from nstance.model.ids import InstanceId, ProviderId
from nstance.model.instance import Cause, Drain, Put, State
from nstance.model.offer import Offer
from nstance.model.rollout import Outcome as RolloutOutcome
from nstance.providers.errors import ThrottledError, UnavailableError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.providers.memory_offers import ANY
from nstance.sim.audit import rollouts
from nstance.sim.audit.departures import Truth
from nstance.sim.audit.desired_history import COMMIT_SECONDS
from nstance.sim.audit.quiescence import find_unrest
from nstance.sim.desired_groups import (
    COLLECT_EVERY,
    DEAD_AFTER,
    SHARD,
    SUBNETS,
    SUSPECT_AFTER,
    DesiredGroup,
    DesiredGroups,
)
from nstance.sim.desired_groups import key as group_key
from nstance.sim.faults import backup as backups
from nstance.sim.faults.nemesis import Nemesis
from nstance.sim.server import SimServer
from nstance.sim.setup import Setup
from nstance.sim.world import World, world


def setup(size: int, *, snapshots: bool = False, servers: int = 2) -> Setup:
    groups = {"web": DesiredGroup(size=size, drain=0.0)}
    return Setup(servers=servers, operator=False, snapshots=snapshots, desired_groups=DesiredGroups(groups=groups))


def wait_for_rest(w: World) -> SimServer:
    w.begin()
    while find_unrest(w):
        w.advance(1.0)
        assert w.now < 120.0, find_unrest(w)
    leader = w.leader()
    assert leader is not None
    return leader


def scale(w: World, **fields: int) -> None:
    groups = {"web": dataclasses.replace(w.desired_groups.groups["web"], **fields)}
    w.do(w.configure, DesiredGroups(groups=groups, heartbeat=w.desired_groups.heartbeat))


def check_settles(w: World) -> None:
    w.do(w.stop_faults)
    w.settle(600.0)
    assert not w.violations, w.violations[0]


@pytest.mark.parametrize("phase", [0.0, 1.0, 2.0, 3.0, 4.0])
def test_unresponsiveness_counts_from_the_last_byte(phase: float) -> None:
    """An agent's last sign of life was lost with its connection: it became suspect up to five seconds too early."""
    with world(1, setup(2)) as w:
        wait_for_rest(w)
        w.advance(phase)
        w.do(w.agents()[0].lose_identity)
        lost = w.now
        while not w.counts["decided suspect"]:
            w.advance(0.25)
            assert w.now < lost + 60.0
        assert w.now - lost >= SUSPECT_AFTER - 0.5
        check_settles(w)


@pytest.mark.parametrize("seconds", [3.4, 3.7, 4.0, 4.4, 5.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_deposed_leader_closes_its_agents_connections(seconds: float, seed: int) -> None:
    """A second cancellation of its term left its ports open: its agents stayed, and seemed unresponsive to the new leader."""
    with world(seed, setup(2)) as w:
        leader = wait_for_rest(w)
        w.do(w.stop, leader, seconds)
        scale(w, size=3)
        w.advance(30.0)
        assert all(a.connection is not None and a.connection.port.server.leading for a in w.agents() if a.alive)
        assert not w.counts["decided suspect"]
        check_settles(w)


@pytest.mark.parametrize("seed", [1, 2, 4, 10])
def test_a_leader_without_storage_closes_its_agents_connections(seed: int) -> None:
    """It kept them for as long as it was cut off, and the new leader replaced two healthy VMs."""
    with world(seed, setup(2)) as w:
        leader = wait_for_rest(w)
        w.storage_faults.cut[leader.name] = 1
        w.advance(10.0 + 3 * DEAD_AFTER)
        assert w.leader() not in (None, leader)
        assert not w.counts["left unhealthy"]
        check_settles(w)


def test_a_leader_that_was_stopped_does_not_count_that_time_against_agents() -> None:
    """An agent without a connection could not connect while the leader was stopped."""
    with world(1, setup(1, servers=1)) as w:
        leader = wait_for_rest(w)
        agent = w.agents()[0]
        for _ in range(4):
            if agent.connection is not None:
                w.do(leader.later, 0.0, agent.connection.abort)
                w.advance(0.05)
            w.do(w.stop, leader, 8.0)
            w.advance(8.2)
        w.advance(5.0)
        assert not w.counts["left unhealthy"]
        check_settles(w)


def test_a_create_on_its_way_is_not_repeated_in_another_subnet() -> None:
    """The first call was applied late; meanwhile its subnet was full, and the same ID was requested in the other one."""
    with world(1, setup(1)) as w:
        w.provider_faults.script = [(1, "late")]
        w.begin()
        while not w.counts["provider late create"]:
            w.advance(0.1)
        w.provider_faults.full[SUBNETS[0]] = w.now + 6.0
        w.advance(30.0)
        assert not w.cloud.mismatched
        check_settles(w)


def test_a_standby_with_an_old_copy_reads_the_journal_again() -> None:
    """Slots after its copy were removed; the first missing slot seemed to be the journal's end, and it led from there."""
    with world(1, setup(2, snapshots=True)) as w:
        leader = wait_for_rest(w)
        standby = next(s for s in w.servers if s is not leader)
        w.storage_faults.cut[standby.name] = 1
        for step in range(30):
            scale(w, size=1 + step % 3)
            w.advance(6.0)
        assert not any("00000000000000000003.json" in key for key in w.storage.contents()), "nothing was removed"
        w.storage_faults.cut.clear()
        w.do(w.kill, leader, 60.0)
        w.advance(20.0)
        check_settles(w)


def test_vms_that_no_listing_shows_do_not_stop_deletions() -> None:
    """Tags stripped from four of five VMs seemed to be a mass absence that never ended."""
    with world(1, setup(5)) as w:
        wait_for_rest(w)
        nemesis = Nemesis(w)
        for id in list(w.auditor.records)[:4]:
            w.cloud.strip_tags(id)
            nemesis._stripped.add(id)
        w.advance(30.0)
        scale(w, size=1)
        w.advance(10.0)
        check_settles(w)


def test_a_failed_listing_is_not_an_empty_listing() -> None:
    """Nothing is deleted until the provider was listed, and a failure is no listing."""
    with world(1, setup(3)) as w:
        leader = wait_for_rest(w)
        usual = w.provider_faults.outcome

        def no_listings(call: Call, id: InstanceId | None) -> Outcome:
            failed = Outcome(applied=False, error=UnavailableError("the cloud is unavailable"))
            return failed if call is Call.LIST else usual(call, id)

        w.provider_faults.outcome = no_listings  # type: ignore[method-assign]
        w.do(w.kill, leader, 60.0)
        scale(w, size=1)
        w.advance(25.0)
        successor = w.leader()
        assert successor is not None
        assert successor.lead is not None
        assert not successor.lead.shard.listed
        assert not w.counts["calls delete"]
        w.provider_faults.outcome = usual  # type: ignore[method-assign]
        check_settles(w)


def test_mass_silence_deletes_nothing() -> None:
    """Five of six agents are cut off at once while their VMs run."""
    with world(1, setup(6)) as w:
        wait_for_rest(w)
        for agent in w.agents()[:5]:
            w.do(agent.cut_off, 45.0)
        w.advance(44.0)
        assert w.counts["decided mass-silence"]
        assert not w.counts["left unhealthy"]
        check_settles(w)


def test_mass_silence_replaces_nothing() -> None:
    """Connections that die without a reset end long after their agents became unresponsive. Time was counted from that
    end, so the whole fleet was replaced before mass silence was noticed."""
    with world(1, setup(9)) as w:
        wait_for_rest(w)
        made = w.counts["calls create"]
        for agent in w.agents():
            w.do(agent.cut_off, 12.0)
            w.advance(0.1)
        w.advance(11.0)  # when they return, the normal rules may apply before the last one is back
        assert w.counts["decided mass-silence"]
        assert w.counts["calls create"] == made
        check_settles(w)


def test_a_jump_of_the_clock_does_not_refuse_agents_whose_answer_was_lost() -> None:
    """Their nonces had expired for the next leader, whose clock was wrong. They could never register, which seemed to be a
    mass silence that never ended."""
    with world(1, setup(3)) as w:
        leader = wait_for_rest(w)
        for server in w.servers:
            server.machine.jump(3600.0)
        for agent in w.agents():
            agent.registered = False
        w.do(w.kill, leader, 60.0)
        w.advance(20.0)
        assert not w.counts["decided mass-silence"]
        check_settles(w)


def test_a_deleted_duplicate_vm_is_not_an_unresponsive_agent() -> None:
    """The auditor counted four deleted duplicate VMs as unresponsive agents, and reported an unhealthy instance as a
    violation of mass silence (seeds 5058, 5499)."""
    with world(1, setup(6)) as w:
        wait_for_rest(w)
        agents = w.agents()
        for agent in agents[:5]:
            w.do(w.cloud.duplicate_vm, agent.id)
        while w.counts["calls delete"] < 5:
            w.advance(1.0)
            assert w.now < 120.0
        w.advance(DEAD_AFTER)
        w.do(agents[5].cut_off, 60.0)
        w.advance(50.0)
        assert w.counts["left unhealthy"] == 1
        check_settles(w)


def test_a_call_that_waits_in_the_queue_is_unrest() -> None:
    """Agents registered before their throttled creates, which were sent when everything seemed to be at rest (seeds 2292,
    7369)."""
    with world(1, setup(1)) as w:
        usual = w.provider_faults.outcome

        def applied_and_throttled(call: Call, id: InstanceId | None) -> Outcome:
            if call is not Call.CREATE or w.counts["calls create"] > 1:
                return usual(call, id)
            return Outcome(before=0.1, error=ThrottledError("too many calls", delay=13.0))

        w.provider_faults.outcome = applied_and_throttled  # type: ignore[method-assign]
        w.begin()
        w.advance(1.0)
        w.settle(120.0)
        assert w.counts["calls create"] == 2
        assert not w.violations, w.violations[0]


@pytest.mark.parametrize("noticed", [False, True])
def test_a_replacement_that_a_group_backs_off_from_is_unrest(noticed: bool) -> None:
    """No subnet had capacity. Nothing was under way while the group backed off, and everything seemed to be at rest when
    the replacement was created, or when the deadline of the notice passed (seeds 4195, 3144)."""
    with world(1, setup(1)) as w:
        leader = wait_for_rest(w)
        assert leader.lead is not None
        (agent,) = w.agents()
        w.provider_faults.full.update(dict.fromkeys(SUBNETS, w.now + 20.0))
        w.auditor.requested.add(agent.id)
        if noticed:
            w.do(agent.deliver_notice, "SPOT_TERMINATION", 40.0)
        else:
            w.do(leader.spawn, leader.lead.shard.ask(ev.ReplacementRequested(agent.id)))
        while not w.counts["decided blocked"]:
            w.advance(0.5)
            assert w.now < 60.0
        assert f"{agent.id} is to go" in find_unrest(w)
        w.do(w.stop_faults)
        w.advance(5.0)  # what was under way has ended
        assert find_unrest(w)
        check_settles(w)
        assert agent.id not in {m.id for m in w.auditor.records.values() if m.counts}


@pytest.mark.parametrize("seed", range(6))
def test_of_two_vms_the_unregistered_one_is_deleted(seed: int) -> None:
    """The answer of the create names one VM, but the other one may register first: that one was deleted."""
    with world(seed, setup(3)) as w:
        w.begin()
        while len(made := w.cloud.vms()) < 3:
            w.advance(0.05)
        for vm in made:
            w.do(w.cloud.duplicate_vm, vm.id)
        w.advance(60.0)
        assert not w.counts["decided suspect"]
        check_settles(w)
        assert w.counts["calls delete"] == 3


def test_two_unresponsive_agents_are_no_mass_silence() -> None:
    """Their lost connections were counted again as open ones: two of six were never replaced."""
    with world(1, setup(6)) as w:
        wait_for_rest(w)
        for agent in w.agents()[:2]:
            w.do(agent.cut_off, 200.0)
        w.advance(10.0 + 2 * DEAD_AFTER)
        assert not w.counts["decided mass-silence"]
        assert w.counts["left unhealthy"] == 2
        check_settles(w)


@pytest.mark.parametrize("behind", [1.5, 4.0, 8.0])
def test_the_last_agent_to_return_after_a_mass_silence_has_its_full_time(behind: float) -> None:
    """Of six that were cut off five returned, the normal rules applied again, and the sixth was suspect and dead at once."""
    with world(1, setup(10)) as w:
        wait_for_rest(w)
        made, gone = w.counts["calls create"], w.counts["calls delete"]
        for number, agent in enumerate(w.agents()[:6]):
            w.do(agent.cut_off, 40.0 if number else 40.0 + behind)
        w.advance(75.0)
        assert w.counts["decided mass-silence"] == 2  # its begin and its end
        assert not w.counts["decided suspect"]
        assert (w.counts["calls create"], w.counts["calls delete"]) == (made, gone)
        check_settles(w)


def test_an_agent_that_stays_unresponsive_after_a_mass_silence_is_replaced() -> None:
    """Its time is counted from the moment when the normal rules apply again."""
    with world(1, setup(10)) as w:
        wait_for_rest(w)
        for number, agent in enumerate(w.agents()[:6]):
            w.do(agent.cut_off, 40.0 if number else 400.0)
        w.advance(41.0 + SUSPECT_AFTER)
        assert not w.counts["left unhealthy"]
        w.advance(5.0 + 2 * DEAD_AFTER)
        assert w.counts["left unhealthy"] == 1
        check_settles(w)


@pytest.mark.parametrize(
    ("state", "violates"), [(State.RUNNING, True), (State.DRAINING, True), (State.DELETING, False)]
)
def test_the_auditor_reports_a_connected_duplicate_vm_unless_its_instance_is_deleted(
    state: State, violates: bool
) -> None:
    """An instance that is deleted takes all its VMs with it, also the registered one (seed 9374)."""
    with world(1, setup(1)) as w:
        wait_for_rest(w)
        (record,) = w.auditor.records.values()
        duplicate_vm = ProviderId("memory-9")
        w.auditor.truth = Truth(w.now, connected={duplicate_vm})
        before = dataclasses.replace(record, state=state)
        w.auditor.check_change({record.id: before}, Put(dataclasses.replace(before, duplicate_vm=duplicate_vm)))
        assert [v for v in w.violations if "considered a duplicate" in v] == w.violations
        assert bool(w.violations) == violates


@pytest.mark.parametrize("replaced", [False, True])
def test_the_auditor_accepts_a_replacement_that_leaves_in_the_same_decision(replaced: bool) -> None:
    """The group shrank to nothing when an unresponsive instance was given up: its replacement had been created, and lost
    its link (seed 60663)."""
    with world(1, setup(2)) as w:
        wait_for_rest(w)
        old, other = w.auditor.records.values()
        before = {old.id: old, other.id: dataclasses.replace(other, replaces=old.id if replaced else None)}
        w.auditor.truth = Truth(w.now, unresponsive={old.id: 2 * DEAD_AFTER})
        drain = Drain(started=0.0, cause=Cause.UNHEALTHY, deadline=9.0, waits=True)
        gone = dataclasses.replace(old, state=State.DRAINING, cause=Cause.UNHEALTHY, drain=drain)
        w.auditor.check_change(before, Put(gone))
        assert bool(w.violations) != replaced


@pytest.mark.parametrize("made", [False, True])
def test_the_auditor_accepts_a_replacement_that_is_created_and_leaves_in_the_same_decision(made: bool) -> None:
    """One decision took the answer of the create, gave up the unresponsive instance and scaled its replacement down: the
    record was an intent before, and had no link afterwards (seed 4392). An intent that leaves was no replacement."""
    with world(1, setup(2)) as w:
        wait_for_rest(w)
        old, other = w.auditor.records.values()
        intent = dataclasses.replace(other, state=State.PENDING, replaces=old.id, provider_id=None)
        w.auditor.records[other.id] = dataclasses.replace(
            other, provider_id=other.provider_id if made else None, state=State.DELETING, cause=Cause.SCALE_DOWN
        )
        w.auditor.truth = Truth(w.now, unresponsive={old.id: 2 * DEAD_AFTER})
        drain = Drain(started=0.0, cause=Cause.UNHEALTHY, deadline=9.0, waits=True)
        gone = dataclasses.replace(old, state=State.DRAINING, cause=Cause.UNHEALTHY, drain=drain)
        w.auditor.check_change({old.id: old, other.id: intent}, Put(gone))
        assert bool(w.violations) != made


def test_the_shards_time_does_not_go_back_when_the_leader_that_found_an_old_lease_dies() -> None:
    """There had been no leader for minutes. The new leader's first lease had the old one's time, which its standby took for
    the current time: records seemed to come from the future (seed 8020)."""
    with world(1, setup(1)) as w:
        wait_for_rest(w)
        w.network.cut.add(frozenset(s.name for s in w.servers))  # it knows the time only from the lease
        for server in w.servers:
            w.do(w.kill, server, 200.0)
        while (first := w.leader()) is None or w.now < 200.0:
            w.advance(0.1)
        w.advance(2.0)
        w.do(w.kill, first, 100.0)
        while (second := w.leader()) is None or second is first:
            w.advance(0.1)
        assert abs(w.steady(second.machine.steady())) < 5.0
        check_settles(w)


@pytest.mark.parametrize("on_clone", ["alarm", "replace"])
def test_two_agents_with_one_identity_are_noticed(on_clone: str) -> None:
    """They took the connection from each other, which went unnoticed."""
    groups = {"web": DesiredGroup(size=2, drain=0.0)}
    with world(
        1, Setup(servers=2, operator=False, desired_groups=DesiredGroups(groups=groups, on_clone=on_clone))
    ) as w:
        wait_for_rest(w)
        for _ in range(3):
            w.do(w.agents()[0].restart, 0.5)
            w.advance(4.0)
        assert not w.counts["decided security"]
        w.do(Nemesis(w).clone_agent)
        w.advance(40.0)
        assert w.counts["decided security"]
        assert bool(w.counts["left requested"]) == (on_clone == "replace")
        check_settles(w)


def test_an_earlier_revision_whose_newest_files_were_not_stored_keeps_its_older_ones() -> None:
    """A leader ended after the files of a revision had changed and before it had stored them. The next one sent the files
    and checks of another revision, although the older ones of that revision were stored (seed 1500002555)."""
    group = DesiredGroup(size=3, drain=0.0, canary=1, checks=1.0)
    with world(1, Setup(operator=False, desired_groups=DesiredGroups(groups={"web": group}))) as w:
        wait_for_rest(w)
        key = group_key("web")
        (old,) = w.auditor.rollouts.groups[key].revisions
        w.do(w.configure, DesiredGroups(groups={"web": dataclasses.replace(group, generation=1)}))
        w.advance(40.0)
        stored = storage_keys.revision(SHARD, key, infra_hash=old.infra_hash, runtime_hash=old.runtime_hash)
        before = storage_keys.revision(SHARD, key, infra_hash=old.infra_hash, runtime_hash="sha256:before")
        w.storage.tamper(before, w.storage.contents()[stored])
        w.storage.tamper(stored, None)
        leader = w.leader()
        assert leader is not None
        w.do(w.kill, leader)
        w.advance(40.0)
        assert all(a.is_ready for a in w.agents() if a.alive)
        check_settles(w)


@pytest.mark.parametrize("cause", [Cause.UNHEALTHY, Cause.DRIFT])
def test_the_auditor_counts_what_was_urgent_when_it_began(cause: Cause) -> None:
    """Two of four were unresponsive, were replaced beside a rollout without a surge, recovered, and left because they were
    outdated (seeds 1500002694, 1500001334)."""
    with world(1, setup(2)) as w:
        leader = wait_for_rest(w)
        assert leader.lead is not None
        desired = leader.lead.shard.desired_groups[group_key("web")]
        new, old = w.auditor.records.values()
        after = {
            new.id: dataclasses.replace(new, replaces=old.id, replaces_for=cause),
            old.id: dataclasses.replace(old, state=State.DRAINING, cause=Cause.DRIFT),
        }
        w.auditor.rollouts._check_surge(after, desired, 1)
        assert bool(w.violations) == (cause is Cause.DRIFT)


def test_for_the_auditor_an_instance_leaves_for_its_replacement_also_in_a_chain() -> None:
    """A replacement expired and left for its own replacement, which took the place of the first instance in the same
    decision: no second step of a serial rollout (seed 9000003855)."""
    with world(1, setup(3)) as w:
        wait_for_rest(w)
        first, second, third = w.auditor.records.values()
        second, third = (dataclasses.replace(new, replaces=old.id) for new, old in ((second, first), (third, second)))
        before = {each.id: each for each in (first, second, third)}
        draining = dataclasses.replace(second, state=State.DRAINING, cause=Cause.ELIGIBLE_EXPIRY)
        after = before | {second.id: draining, third.id: dataclasses.replace(third, replaces=first.id)}
        assert rollouts.is_replaced(before, after, second.id)
        assert not rollouts.is_replaced(before, after | {third.id: draining}, second.id)


def test_the_auditor_knows_the_surge_with_which_a_replacement_began() -> None:
    """A group grew and lost its surge while a replacement was under way (seed 1500002747)."""
    group = DesiredGroup(size=1, drain=0.0)
    with world(1, Setup(operator=False, desired_groups=DesiredGroups(groups={"web": group}))) as w:
        wait_for_rest(w)
        scale(w, generation=1)
        while len(w.auditor.records) < 2:
            w.advance(0.05)
        scale(w, size=4, max_surge=0, max_unavailable=1)
        w.advance(2.0)
        assert len(w.auditor.records) == 5
        check_settles(w)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_for_the_auditor_an_unreachable_instance_is_not_ready(seconds: float) -> None:
    """New files were sent to a VM that had just ended. It was unready for its leader, and left (seed 1500000775)."""
    with world(1, setup(2)) as w:
        wait_for_rest(w)
        w.advance(5.0)
        agent = w.agents()[0]
        assert agent.connection is not None
        port = agent.connection.port
        if seconds:
            w.do(agent.cut_off, seconds)
        view = w.auditor.rollouts._view(port, w.auditor.records, None)
        assert (agent.id in view.firmly_ready) == (not seconds)


def test_a_group_with_too_many_places_replaces_nothing() -> None:
    """Of a group that could not shrink, because listings were not believed, an instance was replaced: one VM more (seed
    3300002984)."""
    with world(1, setup(6)) as w:
        leader = wait_for_rest(w)
        w.advance(2 * COLLECT_EVERY)  # a listing has shown all of them
        usual = w.provider_faults.outcome

        def shows_nothing(call: Call, id: InstanceId | None) -> Outcome:
            failed = Outcome(applied=False, error=UnavailableError("the cloud is unavailable"))
            return {Call.LIST: Outcome(first=0), Call.GET: failed}.get(call) or usual(call, id)

        w.provider_faults.outcome = shows_nothing  # type: ignore[method-assign]
        w.advance(2 * COLLECT_EVERY)
        assert leader.lead is not None
        assert leader.lead.shard.mass_absence
        scale(w, size=5)
        w.advance(COMMIT_SECONDS + 5.0)
        made = w.counts["calls create"]
        id = next(iter(w.auditor.records))
        w.auditor.requested.add(id)
        w.do(leader.lead.shard.post, ev.ReplacementRequested(id))
        w.advance(20.0)
        assert w.counts["calls create"] == made
        w.provider_faults.outcome = usual  # type: ignore[method-assign]
        check_settles(w)


def test_a_vm_is_not_adopted_into_the_place_of_one_that_drains() -> None:
    """A rollout replaced one instance and removed another one first. An unknown VM took the place of that one while it
    still drained: more VMs than the limits allow (seed 3300002152)."""
    group = DesiredGroup(size=3, drain=12.0, max_surge=1, max_unavailable=1)
    groups = DesiredGroups(groups={"web": group})
    with world(1, Setup(desired_groups=groups)) as w:
        wait_for_rest(w)
        backup = backups.take(w)
        scale(w, size=4)
        w.advance(15.0)
        w.do(backups.restore, w, backup)
        w.advance(60.0)
        scale(w, generation=1)
        w.advance(10.0)
        assert not w.violations, w.violations[0]
        check_settles(w)
        assert w.counts["adopted"]


def test_losses_of_a_rollout_are_made_from_a_revision_that_is_stored() -> None:
    """No revision was ever complete, and the one before was lost with the leader that had not stored it. The lost instances
    were made from the new one, beyond its canaries (seed 3300003361)."""
    group = DesiredGroup(size=3, drain=0.0, canary=1)
    with world(1, Setup(operator=False, desired_groups=DesiredGroups(groups={"web": group}))) as w:
        w.begin()
        records = w.auditor.rollouts.groups
        for generation in range(3):
            scale(w, generation=generation)
            while len(records[group_key("web")].revisions if records else ()) <= generation:
                w.advance(0.05)
                assert w.now < 20.0
        lost = records[group_key("web")].revisions[1].infra_hash
        name = storage_keys.revision(SHARD, group_key("web"), infra_hash=lost, runtime_hash="any")
        for key in [key for key in w.storage.contents() if key.startswith(name.removesuffix("any.json"))]:
            w.storage.tamper(key, None)
        w.do(w.kill, w.leader(), 60.0)
        for _ in range(20):
            w.advance(1.0)
            for record in [r for r in w.auditor.records.values() if r.counts and r.infra_hash != lost]:
                w.do(w.cloud.destroy, record.id)
        assert w.counts["made from an earlier revision while a rollout was held"]
        check_settles(w)


def test_an_instance_that_serves_with_earlier_files_stays_rather_than_one_that_fails() -> None:
    """The older one left by forced expiry, and the other one did not become ready (seed 3300000875)."""
    group = DesiredGroup(size=2, drain=0.0, max_surge=0, max_unavailable=1)
    desired = DesiredGroups(groups={"web": group}, forced_age=20.0)
    with world(1, Setup(operator=False, desired_groups=desired)) as w:
        wait_for_rest(w)
        oldest, other = sorted(w.auditor.records)
        w.secrets._values.clear()
        w.do(w.configure, dataclasses.replace(desired, groups={"web": dataclasses.replace(group, files=1)}))
        w.advance(4.0)
        [failing] = w.agents_of(other)
        w.do(failing.fail_checks, True)
        while w.auditor.records[other].counts:
            w.advance(0.1)
            assert w.auditor.records[oldest].counts
            assert w.now < 60.0
        check_settles(w)


def test_for_the_auditor_an_expired_canary_and_its_replacement_are_one_canary() -> None:
    """They share a place (seed 4200000013)."""
    group = DesiredGroup(size=2, drain=0.0, canary=1)
    desired = DesiredGroups(groups={"web": group}, forced_age=30.0)
    with world(1, Setup(operator=False, desired_groups=desired)) as w:
        wait_for_rest(w)
        changed = dataclasses.replace(group, generation=1)
        w.do(w.configure, dataclasses.replace(desired, groups={"web": changed}))
        w.advance(60.0)
        current = w.auditor.rollouts.groups[group_key("web")].revisions[-1].infra_hash
        canaries = [r for r in w.auditor.records.values() if r.infra_hash == current]
        assert (len(canaries), sum(r.counts for r in canaries)) == (2, 1)
        check_settles(w)


def test_for_the_auditor_an_instance_has_the_offers_of_its_own_revision() -> None:
    """The revision before had another type, which was never refused (seed 4200000087 with rollouts that change types)."""
    group = DesiredGroup(size=1, drain=0.0, instance_types=("small",), markets=("spot",))
    with world(1, Setup(operator=False, desired_groups=DesiredGroups(groups={"web": group}))) as w:
        wait_for_rest(w)
        w.provider_faults.exhausted[Offer(ANY, "large", ANY)] = w.now + 10.0
        changed = dataclasses.replace(group, generation=1, instance_types=("large",))
        w.do(w.configure, DesiredGroups(groups={"web": changed}))
        w.advance(15.0)
        assert w.counts["refused instance-type"]
        check_settles(w)


def test_a_pause_waits_for_a_canary_that_had_no_capacity() -> None:
    """The lost canary was replaced by an instance of the earlier revision, and the pause ended without one."""
    group = DesiredGroup(size=3, drain=0.0, canary=1, pause="20s", instance_types=("small",), markets=("spot",))
    with world(1, Setup(operator=False, desired_groups=DesiredGroups(groups={"web": group}))) as w:
        wait_for_rest(w)
        records, key = w.auditor.rollouts.groups, group_key("web")
        changed = dataclasses.replace(group, generation=1, instance_types=("large",))
        w.do(w.configure, DesiredGroups(groups={"web": changed}))
        while records[key].revisions[-1].outcome is not RolloutOutcome.PAUSED:
            w.advance(0.5)
            assert w.now < 60.0
        w.provider_faults.exhausted[Offer(ANY, "large", ANY)] = w.now + 40.0
        [canary] = [r.id for r in w.auditor.records.values() if r.counts and r.instance_type == "large"]
        w.do(w.cloud.destroy, canary)
        w.advance(35.0)
        assert [r.instance_type for r in w.auditor.records.values() if r.counts] == ["small"] * 3
        assert records[key].revisions[-1].resumed_at is None
        while records[key].revisions[-1].outcome is not RolloutOutcome.PAUSED:
            w.advance(0.5)
            assert w.now < 180.0
            assert records[key].revisions[-1].resumed_at is None
        check_settles(w)


def test_the_auditor_knows_what_each_server_desires() -> None:
    """What a standby had read before took the place of what the leader insists on since (seed 5100000544)."""
    group = DesiredGroup(size=1, drain=0.0, instance_types=("small", "large"))
    with world(1, Setup(operator=False, desired_groups=DesiredGroups(groups={"web": group}))) as w:
        wait_for_rest(w)
        strict = dataclasses.replace(group, prefer="strict")
        w.do(w.configure, DesiredGroups(groups={"web": strict}))
        w.advance(5.0)
        found = w.auditor.desired.of(group_key("web"))
        assert {each.prefer for each in found} == {Preference.LOOSE, Preference.STRICT}
        assert {each.size for each in found} == {1}
