"""What a leader remembers of VMs that no record knows, and of the agents that presented themselves."""

from typing import Any

import pytest

from nstance.model.events import VmState
from nstance.model.ids import ClusterId, GroupKey, GroupName, InstanceId, ProviderId, ShardId, TenantId
from nstance.model.vm import AgentIdentity, SeenVm
from nstance.server.state.unknown_vms import MAX_PRESENTED, UnknownVms, describe, why_held

ID = InstanceId("web-01jw51srryegh9snf9cmeh3k4q")
KEY = GroupKey(TenantId("acme"), GroupName("web"))


def vm(provider_id: str = "i-1", **fields: Any) -> SeenVm:
    return SeenVm(
        **{
            "id": ID,
            "provider_id": ProviderId(provider_id),
            "state": VmState.RUNNING,
            "cluster": ClusterId("c"),
            "shard": ShardId("s"),
            "tenant": KEY.tenant,
            "group": KEY.name,
        }
        | fields
    )


def agent(id: str = ID, tenant: str = "acme") -> AgentIdentity:
    return AgentIdentity(
        id=InstanceId(id), tenant=TenantId(tenant), public_key="k", certificate_serial="1", certificate_expires=9.0
    )


def test_only_new_ones_are_news_and_the_first_sight_is_kept() -> None:
    vms = UnknownVms()
    assert {key: len(new) for key, new in vms.update([vm()], 5.0).items()} == {KEY: 1}
    assert vms.update([vm()], 9.0) == {}
    assert [u.first_seen for u in vms.of(KEY)] == [5.0]
    assert vms.update([], 11.0) == {}
    assert len(vms) == 0


@pytest.mark.parametrize("first", ["agent", "listing"])
def test_an_agent_may_come_before_or_after_the_listing(first: str) -> None:
    vms = UnknownVms()
    if first == "agent":
        assert vms.present(agent()) is None
        vms.update([vm()], 5.0)
    else:
        vms.update([vm()], 5.0)
        assert vms.present(agent()) == KEY
    assert [u.agent for u in vms.of(KEY)] == [agent()]
    vms.update([vm()], 6.0)
    assert [u.agent for u in vms.of(KEY)] == [agent()]


@pytest.mark.parametrize("first", ["agent", "listing"])
def test_an_agent_of_another_tenant_is_not_that_of_the_vm(first: str) -> None:
    vms = UnknownVms()
    for step in (first, "listing"):
        if step == "agent":
            vms.present(agent(tenant="globex"))
        else:
            vms.update([vm()], 5.0)
    assert vms.present(agent(tenant="globex")) is None
    assert [u.agent for u in vms.of(KEY)] == [None]


def test_what_has_a_record_now_is_forgotten() -> None:
    vms = UnknownVms()
    vms.present(agent())
    vms.update([vm("i-1"), vm("i-2")], 5.0)
    vms.forget(ID)
    assert len(vms) == 0
    vms.update([vm("i-2")], 6.0)
    assert [u.agent for u in vms.all()] == [None]


def test_what_agents_present_is_bounded() -> None:
    assert MAX_PRESENTED >= 10_000
    vms = UnknownVms()
    for id in ("a", "b", *map(str, range(MAX_PRESENTED - 2)), "c"):
        vms.present(agent(id))
    vms.update([vm(id=InstanceId(id), provider_id=ProviderId(id)) for id in ("a", "b", "c")], 5.0)
    assert [u.agent is not None for u in vms.all()] == [False, True, True]


def test_many_are_recorded_in_one_event() -> None:
    vms = UnknownVms()
    new = vms.update([vm(f"i-{n}", id=InstanceId(f"web-{n}")) for n in range(7)], 5.0)[KEY]
    assert describe(new).endswith("web-4 and 2 more; adopt or release them")


@pytest.mark.parametrize(
    ("fields", "known", "state", "why"),
    [
        ({"too_many": True}, True, VmState.RUNNING, "waits for a person"),
        ({"configured": False}, True, VmState.RUNNING, "not configured"),
        ({}, True, VmState.DOWN, "it is not running"),
        ({}, False, VmState.RUNNING, "certificate"),
        ({"room": True}, True, VmState.RUNNING, "adopted next"),
        ({}, True, VmState.RUNNING, "scale it up"),
    ],
)
def test_why_it_is_held(fields: dict[str, bool], known: bool, state: VmState, why: str) -> None:
    vms = UnknownVms()
    if known:
        vms.present(agent())
    vms.update([vm(state=state)], 5.0)
    [held] = vms.all()
    assert why in why_held(held, **{"configured": True, "room": False, "too_many": False} | fields)
