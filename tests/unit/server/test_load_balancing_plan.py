"""Who belongs to a load balancer: pure decisions."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.core import load_balancing
from nstance.core.load_balancing import Plan
from nstance.model.group import Group
from nstance.model.ids import GroupKey, GroupName, InstanceId, Kind, ProviderId, TenantId
from nstance.model.instance import Instance, State

KEY = GroupKey(TenantId("default"), GroupName("web"))
ID, VM = InstanceId("web-1"), ProviderId("vm-1")
USES = {KEY: Group(key=KEY, size=1, template="t", kind=Kind("web"), load_balancers=("front", "back"))}
OTHER = {KEY: replace(USES[KEY], load_balancers=("back",))}
IN, OUT, NOTHING = Plan(register=(VM,)), Plan(deregister=(VM,)), Plan()


def instance(state: State, **fields: object) -> Instance:
    known = {"id": ID, "tenant": KEY.tenant, "group": KEY.name, "state": state, "created": 1.0, "provider_id": VM}
    return Instance(**known | fields)  # type: ignore[arg-type]


def plan(
    record: Instance,
    *,
    desired_groups: Mapping[GroupKey, Group] = USES,
    healthy: bool = True,
    member: bool | None = False,
) -> Plan:
    return load_balancing.plan(
        "front", [record], desired_groups=desired_groups, ready={ID} if healthy else set(), member=lambda id: member
    )


@pytest.mark.parametrize(
    ("state", "healthy", "member", "expected"),
    [
        (State.PENDING, False, False, NOTHING),
        (State.STARTING, False, False, NOTHING),
        (State.RUNNING, False, False, NOTHING),  # it has not reported yet
        (State.RUNNING, False, True, NOTHING),  # a member of an earlier term stays one
        (State.RUNNING, False, None, NOTHING),
        (State.RUNNING, True, False, IN),
        (State.RUNNING, True, None, IN),  # the answer to its registration was lost
        (State.RUNNING, True, True, NOTHING),
        (State.DRAINING, True, True, OUT),
        (State.DRAINING, False, None, OUT),
        (State.DRAINING, True, False, NOTHING),
        (State.DELETING, True, True, OUT),
        (State.DELETING, False, None, OUT),
        (State.DELETED, True, True, OUT),  # a registration was applied after all
        (State.DELETED, True, None, NOTHING),
        (State.FAILED, False, True, OUT),
    ],
)
def test_where_an_instance_belongs(state: State, healthy: bool, member: bool | None, expected: Plan) -> None:
    assert plan(instance(state), healthy=healthy, member=member) == expected


@pytest.mark.parametrize("desired_groups", [OTHER, {}], ids=["another balancer", "the group was deleted"])
@pytest.mark.parametrize(("member", "expected"), [(True, OUT), (False, NOTHING), (None, NOTHING)])
def test_a_group_that_uses_another_balancer(
    desired_groups: Mapping[GroupKey, Group], member: bool | None, expected: Plan
) -> None:
    """Only what is known to be in is taken out: nobody calls a balancer for instances that it never had."""
    assert plan(instance(State.RUNNING), desired_groups=desired_groups, member=member) == expected


def test_without_a_vm_there_is_nothing_to_register() -> None:
    assert plan(instance(State.RUNNING, provider_id=None)) == NOTHING


records = st.dictionaries(st.integers(0, 8), st.sampled_from(list(State)), max_size=9)


@given(
    states=records,
    members=st.sets(st.integers(0, 12)),
    healthy=st.sets(st.integers(0, 8)),
    lost=st.lists(st.booleans(), max_size=40),
)
def test_whatever_is_lost_it_converges_and_strangers_stay(
    states: dict[int, State], members: set[int], healthy: set[int], lost: list[bool]
) -> None:
    balancer = {ProviderId(f"vm-{n}") for n in members}
    strangers = {ProviderId(f"vm-{n}") for n in members if n not in states}
    instances = [
        instance(state, id=InstanceId(f"web-{n}"), provider_id=ProviderId(f"vm-{n}")) for n, state in states.items()
    ]
    reported = {InstanceId(f"web-{n}") for n in healthy}

    def look() -> Plan:
        known = frozenset(balancer)
        return load_balancing.plan(
            "front", instances, desired_groups=USES, ready=reported, member=lambda id: id in known
        )

    losses = iter(lost)
    for _ in range(60):
        step = look()
        for id in step.register:
            if not next(losses, False):
                balancer.add(id)
        for id in step.deregister:
            if not next(losses, False):
                balancer.discard(id)
    assert look() == Plan()
    assert strangers <= balancer
    for each in instances:
        member = each.provider_id in balancer
        if each.state is State.RUNNING and each.id in reported:
            assert member
        if each.state not in (State.RUNNING, State.PENDING, State.STARTING):
            assert not member
