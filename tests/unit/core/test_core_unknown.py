"""Unknown VMs: held, adopted if an instance is missing, released on request, deleted if configured."""

from dataclasses import replace
from typing import Any

import pytest

from nstance.core import inventory
from nstance.core.adopting import FIRST_LISTING_SECONDS
from nstance.model import events as ev
from nstance.model.decision import CreateVm, DeleteVm, Rejection
from nstance.model.events import VmState
from nstance.model.group import Policy
from nstance.model.ids import ClusterId, InstanceId, ProviderId, ShardId
from nstance.model.instance import Cause, State
from nstance.model.vm import AgentIdentity, SeenVm, UnknownVm
from unit.core.core_situation import KEY, NOW, After, after, desired, member, name

CLUSTER, SHARD = ClusterId("c"), ShardId("s")


def seen(letter: str, state: VmState = VmState.RUNNING, **fields: Any) -> SeenVm:
    return SeenVm(
        **{
            "id": name(letter),
            "provider_id": ProviderId(f"i-{letter}"),
            "state": state,
            "ip4": "10.0.0.9",
            "cluster": CLUSTER,
            "shard": SHARD,
            "tenant": KEY.tenant,
            "group": KEY.name,
        }
        | fields
    )


def agent(id: InstanceId) -> AgentIdentity:
    return AgentIdentity(
        id=id, tenant=KEY.tenant, public_key=f"key-{id}", certificate_serial="ab", certificate_expires=NOW + 9.0
    )


def unknown(letter: str, *, known: bool = True, state: VmState = VmState.RUNNING) -> UnknownVm:
    return UnknownVm(vm=seen(letter, state), first_seen=NOW, agent=agent(name(letter)) if known else None)


def held(follows: After) -> bool:
    return not follows.decision.changes and not follows.effects(CreateVm) and not follows.effects(DeleteVm)


class TestAdoption:
    def test_a_vm_whose_agent_presents_its_certificate_is_adopted(self) -> None:
        follows = after([member("a")], ev.GroupChanged(), size=2, unknown=(unknown("x"),))
        record = follows["x"]
        assert (record.state, record.provider_id, record.public_key) == (State.RUNNING, "i-x", f"key-{name('x')}")
        assert (record.certificate_serial, record.certificate_expires) == ("ab", NOW + 9.0)
        assert (record.seen, record.made, record.infra_hash, record.ip4) == (True, NOW, "h", "10.0.0.9")
        assert not follows.effects(CreateVm)
        assert "adopted" in follows.codes()
        assert follows.decision.observations[name("x")].agent.adopted  # it was rejected, and comes back

    def test_never_more_than_the_group_has_places_for(self) -> None:
        assert held(after([member("a")], ev.GroupChanged(), size=1, unknown=(unknown("x"),)))
        follows = after([member("a")], ev.GroupChanged(), size=2, unknown=(unknown("x"), unknown("y")))
        assert [m.id for m in follows.made] == [name("x")]

    def test_a_place_that_a_rollout_has_emptied_is_not_free_while_its_vm_exists(self) -> None:
        """Three VMs, one that replaces the first, and the adopted one were one more than the size and the surge."""
        group = desired(3, max_surge=1, max_unavailable=1)
        there = [member(x, infra_hash="old") for x in "abc"]
        begun = after(there, ev.GroupChanged(), group=group, unknown=(unknown("x"),))
        assert (len(begun.made), begun.in_state(State.DRAINING)) == (1, "b")
        assert name("x") not in begun.members
        gone = [
            replace(m, state=State.DELETED, drain=None, ended=NOW) if m.drain else m for m in begun.members.values()
        ]
        assert name("x") in after(gone, ev.TimerFired(), group=group, unknown=(unknown("x"),)).members

    def test_its_age_counts_from_its_adoption(self) -> None:
        """The time in its ID is that of a clock that may have been wrong: nobody is to expire by it."""
        follows = after([], size=1, unknown=(unknown("x"),), policy=Policy(forced_age=60.0))
        assert (follows["x"].created, follows["x"].state) == (NOW, State.RUNNING)

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"known": False}, id="no certificate presented"),
            pytest.param({"state": VmState.DOWN}, id="it does not run"),
        ],
    )
    def test_vms_without_a_certificate_are_not_adopted(self, fields: dict[str, Any]) -> None:
        follows = after([], ev.GroupChanged(), size=1, unknown=(unknown("x", **fields),))
        assert name("x") not in follows.members
        assert len(follows.effects(CreateVm)) == 1

    def test_agents_get_time_to_reconnect_before_vms_are_created(self) -> None:
        young = {"listening_since": NOW - 1.0, "reconnect_grace": 12.0}
        follows = after([], ev.GroupChanged(), size=2, unknown=(unknown("x", known=False),), **young)
        assert len(follows.made) == 1
        assert follows.decision.wake_at == NOW + 11.0
        later = after([], ev.TimerFired(), size=2, unknown=(unknown("x", known=False),), now=NOW + 11.0, **young)
        assert len(later.made) == 2

    def test_a_term_waits_for_its_first_listing_before_it_creates(self) -> None:
        fresh = {"listed": False, "listening_since": NOW}
        follows = after([], ev.GroupChanged(), size=1, **fresh)
        assert held(follows)
        assert follows.decision.wake_at == NOW + FIRST_LISTING_SECONDS
        assert len(after([], ev.TimerFired(), size=1, now=NOW + FIRST_LISTING_SECONDS, **fresh).made) == 1

    def test_a_paused_group_adopts_nothing(self) -> None:
        assert held(after([], ev.GroupChanged(), group=desired(1, paused=True), unknown=(unknown("x"),)))


class TestRequests:
    def test_an_adoption_by_request_needs_no_certificate(self) -> None:
        follows = after([], ev.AdoptionRequested(name("x"), "opr-1"), size=1, unknown=(unknown("x", known=False),))
        assert (follows["x"].state, follows["x"].created, follows["x"].public_key) == (State.STARTING, NOW, "")
        assert not follows.effects(CreateVm)

    @pytest.mark.parametrize(
        ("size", "vm", "paused", "refusal"),
        [
            pytest.param(1, unknown("x"), False, Rejection.NO_ROOM, id="the group has its size"),
            pytest.param(2, unknown("y"), False, Rejection.UNKNOWN, id="another VM"),
            pytest.param(2, unknown("x", state=VmState.DOWN), False, Rejection.NOT_RUNNING, id="it does not run"),
            pytest.param(2, unknown("x"), True, Rejection.PAUSED, id="paused"),
        ],
    )
    def test_rejections(self, size: int, vm: UnknownVm, paused: bool, refusal: Rejection) -> None:
        group = desired(size, paused=paused)
        follows = after([member("a")], ev.AdoptionRequested(name("x")), group=group, unknown=(vm,))
        assert follows.decision.rejections == {0: refusal}
        assert name("x") not in follows.members

    def test_release_writes_the_tombstone_first(self) -> None:
        follows = after([member("a")], ev.ReleaseRequested(name("x"), "opr-1"), size=1, unknown=(unknown("x"),))
        assert (follows["x"].state, follows["x"].cause) == (State.DELETING, Cause.REQUESTED)
        assert "opr-1" in follows["x"].message
        assert follows.effects(DeleteVm) == "x"

    def test_release_of_a_known_instance_is_rejected(self) -> None:
        follows = after([member("a")], ev.ReleaseRequested(name("a")), size=1)
        assert follows.decision.rejections == {0: Rejection.UNKNOWN}
        assert held(follows)


class TestListings:
    def compare(self, shown: list[SeenVm], records: int, *, delete: bool) -> inventory.Comparison:
        letters = "abcdefghjkmnpqrstvwxyz"[:records]
        known = [member(x) for x in letters]
        return inventory.compare(
            [*(seen(x) for x in letters), *shown],
            {m.id: m for m in known},
            {(inventory.Anomaly.ORPHAN, vm.id): 9 for vm in shown},
            inventory.Scope(cluster=CLUSTER, shard=SHARD, delete_unknown=delete),
        )

    def test_unknown_vms_are_held_by_default(self) -> None:
        found = self.compare([seen("0")], 3, delete=False)
        assert found.unknown == (seen("0"),)
        assert not any(isinstance(e, ev.OrphanFound) for events in found.events.values() for e in events)

    @pytest.mark.parametrize(
        ("records", "vms", "deleted"),
        [
            pytest.param(0, 3, True, id="three are never many"),
            pytest.param(4, 4, False, id="four of eight"),
            pytest.param(16, 4, True, id="a fifth"),
            pytest.param(15, 4, False, id="more than a fifth"),
        ],
    )
    def test_many_unknown_vms_are_never_deleted_at_once(self, records: int, vms: int, deleted: bool) -> None:
        found = self.compare([seen(str(n)) for n in range(vms)], records, delete=True)
        assert len(found.unknown) == vms
        orphans = [e for events in found.events.values() for e in events if isinstance(e, ev.OrphanFound)]
        assert len(orphans) == (vms if deleted else 0)
        assert found.too_many_unknown != deleted
