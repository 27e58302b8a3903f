"""Requests about single instances while their answers are on the way."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nstance.config.model.workload import OnDemand
from nstance.model import events as ev
from nstance.model.decision import Rejection
from nstance.model.group import Group
from nstance.model.ids import (
    ClusterId,
    GroupKey,
    GroupName,
    Kind,
    OperatorId,
    TenantId,
    instance_id,
    requested_uuid,
)
from nstance.model.instance import Instance, Put, State
from nstance.objects import journal
from nstance.pki import names
from nstance.server.api.instance_requests import InstanceRequests
from nstance.server.api.tenancy import Tenancy
from nstance.server.state.commits import Committed
from nstance.server.state.committed_records import CommittedRecords
from nstance.server.state.inbox import OverloadedError
from nstance.sim.loop import Machine
from nstance.v1.operator_pb2 import CreateInstanceRequest
from support.virtual_time import virtually

ACME = TenantId("acme")
WHO = names.Operator(ClusterId("demo"), ACME, OperatorId("opr-01jw51srryegh9snf9cmeh3k4q"))
UUID = "01970a1c-e31e-7422-9cd5-e9651d11cc97"
ID = instance_id(Kind("web"), requested_uuid(ACME, int(UUID.replace("-", ""), 16)))


def group(name: str) -> Group:
    return Group(key=GroupKey(ACME, GroupName(name)), size=0, template="web", kind=Kind("web"))


class World:
    """A shard that answers on request."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Rejection | None] = asyncio.get_running_loop().create_future()
        self.asked: list[tuple[ev.Event, GroupKey | None]] = []
        spec = SimpleNamespace(template=SimpleNamespace(on_demand=OnDemand.model_validate({})))
        resolved = {g.key: SimpleNamespace(group=g, spec=spec) for g in (group("one"), group("two"))}
        self.shard: Any = SimpleNamespace(
            instances={}, desired_groups={}, ask=self._ask, event_log=SimpleNamespace(record=lambda *args: None)
        )
        active_config: Any = SimpleNamespace(configuration=SimpleNamespace(groups=resolved))
        self.records = CommittedRecords({})
        self.requests = InstanceRequests(self.shard, self.records)
        self.tenancy = Tenancy(WHO, active_config, self.records)

    async def _ask(self, event: ev.Event, *, key: GroupKey | None = None) -> Rejection | None:
        self.asked.append((event, key))
        return await asyncio.shield(self.answer)

    async def create(self, name: str) -> Instance | Status:
        try:
            made, _ = await self.requests.create(self.tenancy, CreateInstanceRequest(group=name, uuid=UUID))
            return made
        except GRPCError as refused:
            return refused.status

    def commit(self, name: str) -> None:
        made = Instance(id=ID, tenant=ACME, group=GroupName(name), state=State.PENDING, created=1.0, on_demand=True)
        self.shard.instances[ID] = made
        self.records.observe(Committed(made.key, (Put(made),), (), {}))
        self.answer.set_result(None)


async def test_a_uuid_of_another_group_is_refused_and_the_same_one_is_found_again() -> None:
    world = World()
    asking = [asyncio.create_task(world.create("one")) for _ in range(2)]
    await asyncio.sleep(0)
    world.commit("one")
    made = await asyncio.gather(*asking)
    assert [each.id for each in made if isinstance(each, Instance)] == [ID, ID]
    assert await world.create("two") is Status.FAILED_PRECONDITION


@pytest.mark.parametrize("problem", [journal.DeposedError("it is over"), OverloadedError("too much")])
async def test_a_shard_that_cannot_answer_is_unavailable(problem: Exception) -> None:
    world = World()
    world.answer.set_exception(problem)
    assert await world.create("one") is Status.UNAVAILABLE


@virtually
async def test_an_answer_that_does_not_come_in_time_is_unavailable(clock: Machine) -> None:
    assert await World().create("one") is Status.UNAVAILABLE
