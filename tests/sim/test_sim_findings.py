"""What the simulator found in the product, each told as a short story of its own: seeds change their course with every
change of the code, these do not."""

import dataclasses

import pytest

from nstance.model import events as ev
from nstance.model.ids import InstanceId, ProviderId
from nstance.model.instance import Cause, Drain, Put, State
from nstance.providers.errors import ThrottledError, UnavailableError
from nstance.providers.memory_behavior import Call, Outcome
from nstance.sim.audit.auditor import Then
from nstance.sim.desired_groups import DEAD_AFTER, SUBNETS, SUSPECT_AFTER, DesiredGroup, DesiredGroups
from nstance.sim.faults.nemesis import Nemesis
from nstance.sim.server import SimServer
from nstance.sim.setup import Setup
from nstance.sim.world import World, world


def setup(size: int, *, snapshots: bool = False, servers: int = 2) -> Setup:
    groups = {"web": DesiredGroup(size=size, drain=0.0)}
    return Setup(servers=servers, operator=False, snapshots=snapshots, desired_groups=DesiredGroups(groups=groups))


def rested(w: World) -> SimServer:
    w.begin()
    while w.auditor.unrest():
        w.advance(1.0)
        assert w.now < 60.0, w.auditor.unrest()
    leader = w.leader()
    assert leader is not None
    return leader


def scale(w: World, **fields: int) -> None:
    groups = {"web": dataclasses.replace(w.desired_groups.groups["web"], **fields)}
    w.do(w.tell, DesiredGroups(groups=groups, heartbeat=w.desired_groups.heartbeat))


def sound(w: World) -> None:
    w.do(w.calm)
    w.settle(600.0)
    assert not w.violations, w.violations[0]


@pytest.mark.parametrize("phase", [0.0, 1.0, 2.0, 3.0, 4.0])
def test_silence_begins_with_the_last_byte(phase: float) -> None:
    """An agent's last sign of life was forgotten with its connection: it was suspect up to five seconds too early."""
    with world(1, setup(2)) as w:
        rested(w)
        w.advance(phase)
        w.do(w.agents()[0].forget)
        lost = w.now
        while not w.counts["decided suspect"]:
            w.advance(0.25)
            assert w.now < lost + 60.0
        assert w.now - lost >= SUSPECT_AFTER - 0.5
        sound(w)


@pytest.mark.parametrize("seconds", [3.4, 3.7, 4.0, 4.4, 5.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_deposed_leader_lets_its_agents_go(seconds: float, seed: int) -> None:
    """A second cancellation of its term left its ports open: its agents stayed, and the new leader took them for silent."""
    with world(seed, setup(2)) as w:
        leader = rested(w)
        w.do(w.stop, leader, seconds)
        scale(w, size=3)
        w.advance(30.0)
        assert all(a.line is not None and a.line.door.server.leading for a in w.agents() if a.alive)
        assert not w.counts["decided suspect"]
        sound(w)


@pytest.mark.parametrize("seed", [1, 2, 4, 10])
def test_a_leader_cut_off_from_storage_lets_its_agents_go(seed: int) -> None:
    """It kept them for as long as it was cut off, and the new leader replaced two healthy VMs (F17)."""
    with world(seed, setup(2)) as w:
        leader = rested(w)
        w.storage_faults.cut[leader.name] = 1
        w.advance(10.0 + 3 * DEAD_AFTER)
        assert w.leader() not in (None, leader)
        assert not w.counts["left unhealthy"]
        sound(w)


def test_a_leader_that_stood_still_does_not_blame_its_agents() -> None:
    """An agent that lost its connection could not come back while the leader was stopped: that is not its silence."""
    with world(1, setup(1, servers=1)) as w:
        leader = rested(w)
        agent = w.agents()[0]
        for _ in range(4):
            line = agent.line
            if line is not None:
                w.do(leader.later, 0.0, line.abort)
                w.advance(0.05)
            w.do(w.stop, leader, 8.0)
            w.advance(8.2)
        w.advance(5.0)
        assert not w.counts["left unhealthy"]
        sound(w)


def test_an_id_on_its_way_is_not_asked_for_elsewhere() -> None:
    """The first call was applied late; meanwhile its subnet had no room, and the ID was asked for in the other one."""
    with world(1, setup(1)) as w:
        w.provider_faults.script = [(1, "late")]
        w.begin()
        while not w.counts["provider late create"]:
            w.advance(0.1)
        w.provider_faults.full[SUBNETS[0]] = w.now + 6.0
        w.advance(30.0)
        assert not w.cloud.mismatched
        sound(w)


def test_a_standby_with_an_old_copy_reads_anew() -> None:
    """Slots behind its copy were removed; the first one missing looked like the journal's end, and it led from there."""
    with world(1, setup(2, snapshots=True)) as w:
        leader = rested(w)
        standby = next(s for s in w.servers if s is not leader)
        w.storage_faults.cut[standby.name] = 1
        for step in range(30):
            scale(w, size=1 + step % 3)
            w.advance(6.0)
        assert not any("00000000000000000003.json" in key for key in w.storage.contents()), "nothing was removed"
        w.storage_faults.cut.clear()
        w.do(w.kill, leader, 60.0)
        w.advance(20.0)
        sound(w)


def test_vms_that_no_listing_shows_do_not_stop_deletions() -> None:
    """Tags stripped from four of five VMs looked like a mass absence for ever (F50, F53)."""
    with world(1, setup(5)) as w:
        rested(w)
        nemesis = Nemesis(w)
        for id in list(w.auditor.fold)[:4]:
            w.cloud.strip_tags(id)
            nemesis._stripped.add(id)
        w.advance(30.0)
        scale(w, size=1)
        w.advance(10.0)
        sound(w)


def test_a_listing_that_fails_says_nothing() -> None:
    """Until the provider was listed nothing is deleted, and a failure is no listing (F50)."""
    with world(1, setup(3)) as w:
        leader = rested(w)
        usual = w.provider_faults.outcome

        def no_listings(call: Call, id: InstanceId | None) -> Outcome:
            away = Outcome(applied=False, error=UnavailableError("the cloud is away"))
            return away if call is Call.LIST else usual(call, id)

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
        sound(w)


def test_a_cut_between_us_and_the_fleet_deletes_nothing() -> None:
    """F59: five of six agents fall silent at once while their VMs run."""
    with world(1, setup(6)) as w:
        rested(w)
        for agent in w.agents()[:5]:
            w.do(agent.fall_silent, 45.0)
        w.advance(44.0)
        assert w.counts["decided mass-silence"]
        assert not w.counts["left unhealthy"]
        sound(w)


def test_a_cut_between_us_and_the_fleet_replaces_nothing() -> None:
    """F59: connections that are dead without a reset end when their agents have long been silent. The silence was counted
    from that end on, so the whole fleet became suspect and was replaced before the brake was put on (found by chaos)."""
    with world(1, setup(9)) as w:
        rested(w)
        made = w.counts["calls create"]
        for agent in w.agents():
            w.do(agent.fall_silent, 12.0)
            w.advance(0.1)
        w.advance(11.0)  # when they return, the normal rules may return before the last one of them
        assert w.counts["decided mass-silence"]
        assert w.counts["calls create"] == made
        sound(w)


def test_a_jump_of_the_clock_does_not_refuse_those_whose_answer_was_lost() -> None:
    """F8, F20: their nonces were out of date for the next leader, whose clock was wrong. They could never come back, and
    being all, were taken for a mass silence for ever."""
    with world(1, setup(3)) as w:
        leader = rested(w)
        for server in w.servers:
            server.machine.jump(3600.0)
        for agent in w.agents():
            agent.registered = False
        w.do(w.kill, leader, 60.0)
        w.advance(20.0)
        assert not w.counts["decided mass-silence"]
        sound(w)


def test_a_deleted_double_is_nobodys_silence() -> None:
    """The auditor took four deleted doubles for four silent agents, and an instance that went for its own silence for an
    offence against the brake on mass silence (seeds 5058, 5499)."""
    with world(1, setup(6)) as w:
        rested(w)
        agents = w.agents()
        for agent in agents[:5]:
            w.do(w.cloud.duplicate_vm, agent.id)
        while w.counts["calls delete"] < 5:
            w.advance(1.0)
            assert w.now < 120.0
        w.advance(DEAD_AFTER)
        w.do(agents[5].fall_silent, 60.0)
        w.advance(50.0)
        assert w.counts["left unhealthy"] == 1
        sound(w)


def test_a_call_that_waits_for_its_turn_is_unrest() -> None:
    """The agents were faster than the throttled creates, which came when everything seemed to be at rest (seeds 2292,
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
    """F51: no subnet had room. Nothing was under way while the group backed off, and everything seemed to be at rest when
    the replacement came, or the one that was to be replaced went by its notice's deadline (seeds 4195, 3144)."""
    with world(1, setup(1)) as w:
        leader = rested(w)
        assert leader.lead is not None
        (agent,) = w.agents()
        w.provider_faults.full.update(dict.fromkeys(SUBNETS, w.now + 20.0))
        w.auditor.requested.add(agent.id)
        if noticed:
            w.do(agent.tell, "SPOT_TERMINATION", 40.0)
        else:
            w.do(leader.spawn, leader.lead.shard.ask(ev.ReplacementRequested(agent.id)))
        while not w.counts["decided back-off"]:
            w.advance(0.5)
            assert w.now < 60.0
        w.do(w.calm)
        w.advance(5.0)  # what was under way has ended
        assert f"{agent.id} is to go" in w.auditor.unrest()
        sound(w)
        assert agent.id not in {m.id for m in w.auditor.fold.values() if m.counts}


@pytest.mark.parametrize("seed", range(6))
def test_of_two_vms_the_unregistered_one_goes(seed: int) -> None:
    """The create's answer names one VM, but the other one may be faster to register: that one was deleted."""
    with world(seed, setup(3)) as w:
        w.begin()
        while len(made := w.cloud.vms()) < 3:
            w.advance(0.05)
        for vm in made:
            w.do(w.cloud.duplicate_vm, vm.id)
        w.advance(60.0)
        assert not w.counts["decided suspect"]
        sound(w)
        assert w.counts["calls delete"] == 3


def test_two_that_stay_silent_are_no_mass_silence() -> None:
    """Their lost connections were counted a second time as open ones: the brake held two of six for ever."""
    with world(1, setup(6)) as w:
        rested(w)
        for agent in w.agents()[:2]:
            w.do(agent.fall_silent, 200.0)
        w.advance(10.0 + 2 * DEAD_AFTER)
        assert not w.counts["decided mass-silence"]
        assert w.counts["left unhealthy"] == 2
        sound(w)


@pytest.mark.parametrize("behind", [1.5, 4.0, 8.0])
def test_the_last_to_return_after_a_mass_silence_is_waited_for(behind: float) -> None:
    """F59: of six that were cut off five returned, the normal rules returned with them, and the sixth was suspect and dead
    at once for a silence that was not its own."""
    with world(1, setup(10)) as w:
        rested(w)
        made, gone = w.counts["calls create"], w.counts["calls delete"]
        for number, agent in enumerate(w.agents()[:6]):
            w.do(agent.fall_silent, 40.0 if number else 40.0 + behind)
        w.advance(75.0)
        assert w.counts["decided mass-silence"] == 2  # one says that it begins, one that it is over
        assert not w.counts["decided suspect"]
        assert (w.counts["calls create"], w.counts["calls delete"]) == (made, gone)
        sound(w)


def test_who_stays_silent_after_a_mass_silence_is_replaced() -> None:
    """Its silence is counted anew when the normal rules return, and then it counts."""
    with world(1, setup(10)) as w:
        rested(w)
        for number, agent in enumerate(w.agents()[:6]):
            w.do(agent.fall_silent, 40.0 if number else 400.0)
        w.advance(41.0 + SUSPECT_AFTER)
        assert not w.counts["left unhealthy"]
        w.advance(5.0 + 2 * DEAD_AFTER)
        assert w.counts["left unhealthy"] == 1
        sound(w)


@pytest.mark.parametrize(("state", "minds"), [(State.RUNNING, True), (State.DRAINING, True), (State.DELETING, False)])
def test_the_auditor_minds_a_double_that_speaks_while_its_instance_stays(state: State, minds: bool) -> None:
    """An instance that goes takes all its VMs with it, also the one that has registered (seed 9374)."""
    with world(1, setup(1)) as w:
        rested(w)
        (record,) = w.auditor.fold.values()
        duplicate_vm = ProviderId("memory-9")
        w.auditor._then = Then(w.now, {}, {}, set(), {duplicate_vm}, False)
        before = dataclasses.replace(record, state=state)
        w.auditor._changed({record.id: before}, Put(dataclasses.replace(before, duplicate_vm=duplicate_vm)))
        assert [v for v in w.violations if "taken for a double" in v] == w.violations
        assert bool(w.violations) == minds


@pytest.mark.parametrize("replaced", [False, True])
def test_the_auditor_knows_a_replacement_that_goes_in_the_same_decision(replaced: bool) -> None:
    """The group shrank to nothing when a silent instance was given up: its replacement had been made, and lost its link
    with its place (seed 60663)."""
    with world(1, setup(2)) as w:
        rested(w)
        old, other = w.auditor.fold.values()
        before = {old.id: old, other.id: dataclasses.replace(other, replaces=old.id if replaced else None)}
        w.auditor._then = Then(w.now, {old.id: 2 * DEAD_AFTER}, {}, set(), set(), False)
        drain = Drain(started=0.0, cause=Cause.UNHEALTHY, deadline=9.0, waits=True)
        gone = dataclasses.replace(old, state=State.DRAINING, cause=Cause.UNHEALTHY, drain=drain)
        w.auditor._changed(before, Put(gone))
        assert bool(w.violations) != replaced


@pytest.mark.parametrize("made", [False, True])
def test_the_auditor_knows_a_replacement_that_is_made_and_goes_in_the_same_decision(made: bool) -> None:
    """The cloud's answer, the end of the silent one, and that its replacement is one too many, came together: the record
    was an intent before, and had no link afterwards (seed 4392). An intent that goes was no replacement."""
    with world(1, setup(2)) as w:
        rested(w)
        old, other = w.auditor.fold.values()
        intent = dataclasses.replace(other, state=State.PENDING, replaces=old.id, provider_id=None)
        w.auditor.fold[other.id] = dataclasses.replace(
            other, provider_id=other.provider_id if made else None, state=State.DELETING, cause=Cause.SCALE_DOWN
        )
        w.auditor._then = Then(w.now, {old.id: 2 * DEAD_AFTER}, {}, set(), set(), False)
        drain = Drain(started=0.0, cause=Cause.UNHEALTHY, deadline=9.0, waits=True)
        gone = dataclasses.replace(old, state=State.DRAINING, cause=Cause.UNHEALTHY, drain=drain)
        w.auditor._changed({old.id: old, other.id: intent}, Put(gone))
        assert bool(w.violations) != made


def test_the_shards_time_does_not_go_back_when_whoever_found_an_old_lease_dies_soon() -> None:
    """F20, F27: nobody had led for minutes. The new leader's first lease said the old one's time, which its standby took
    for the time of that moment: records seemed to come from the future (seed 8020)."""
    with world(1, setup(1)) as w:
        rested(w)
        w.network.cut.add(frozenset(s.name for s in w.servers))  # it knows the time from the lease alone
        for server in w.servers:
            w.do(w.kill, server, 200.0)
        while (first := w.leader()) is None or w.now < 200.0:
            w.advance(0.1)
        w.advance(2.0)
        w.do(w.kill, first, 100.0)
        while (second := w.leader()) is None or second is first:
            w.advance(0.1)
        assert abs(w.steady(second.machine.steady())) < 5.0
        sound(w)


@pytest.mark.parametrize("on_clone", ["alarm", "replace"])
def test_two_agents_with_one_identity_are_noticed(on_clone: str) -> None:
    """They took the connection from each other, and nobody noticed."""
    groups = {"web": DesiredGroup(size=2, drain=0.0)}
    with world(
        1, Setup(servers=2, operator=False, desired_groups=DesiredGroups(groups=groups, on_clone=on_clone))
    ) as w:
        rested(w)
        for _ in range(3):
            w.do(w.agents()[0].restart, 0.5)
            w.advance(4.0)
        assert not w.counts["decided security"]
        w.do(Nemesis(w).clone_agent)
        w.advance(40.0)
        assert w.counts["decided security"]
        assert bool(w.counts["left requested"]) == (on_clone == "replace")
        sound(w)
