"""Objects that are larger than anything Nstance writes: no server ends, and nothing else is hidden."""

import asyncio
from pathlib import Path

import pytest
from grpclib.const import Status

from component.whole_server import SHARD, World, config, states
from nstance.config import dynamic, jsonc
from nstance.model.ids import GroupKey, GroupName, TenantId
from nstance.objects.port import MAX_READ
from nstance.server.waits import Waits
from nstance.tasks.backoff import Backoff
from nstance.v1.operator_pb2 import GroupConfig
from support.eventually import eventually

GROUPS = {"acme": {"web": {"template": "web", "size": 1}}}
OVERSIZED = [
    pytest.param("config.jsonc", jsonc.MAX_BYTES, id="config"),
    pytest.param("groups.jsonc", dynamic.MAX_BYTES, id="groups"),
]


@pytest.mark.parametrize(("name", "limit"), OVERSIZED)
async def test_the_last_valid_configuration_stays_active(tmp_path: Path, name: str, limit: int) -> None:
    key = f"shard/{SHARD}/{name}"
    async with World(tmp_path, config(groups=GROUPS)) as world:
        leader = await world.start("a")
        operator = await world.operator("acme")
        await operator.call("UpsertGroup", key="made", config=GroupConfig(template="web", size=1))
        standby = await world.start("b", lead=False)
        whole = world.store.contents()[key]
        world.store.tamper(key, bytes(limit + 1))
        answer = await operator.call("RefreshConfig")
        assert (answer.updated, len(answer.errors)) == (False, 1)
        assert f"expected at most {limit:,} bytes" in answer.errors[0] or name == "groups.jsonc"  # of all tenants
        assert not await standby.active_config.refresh()
        assert key in standby.active_config.rejection
        # The same after a failover, also for the group that only the API knows.
        await leader.crash()
        await eventually(lambda: standby.lead is not None)
        operator = await world.operator("acme")
        found = await operator.call("ListGroups")
        assert [group.key for group in found.groups] == ["made", "web"]
        await eventually(lambda: sorted(states(world, "made", "acme").values()) == ["running"])
        assert list(states(world, "web", "acme").values()) == ["running"]
        if name == "groups.jsonc":
            refused = await operator.refused("UpsertGroup", key="made", config=GroupConfig(template="web", size=2))
            assert refused.status is Status.FAILED_PRECONDITION
            assert "groups.jsonc is not valid: repair it" in str(refused.message)
        world.store.tamper(key, whole)
        await operator.call("RefreshConfig")
        assert not standby.active_config.rejection
        await operator.call("UpsertGroup", key="made", config=GroupConfig(template="web", size=2))
        assert standby.shard.desired_groups[GroupKey(TenantId("acme"), GroupName("made"))].size == 2


@pytest.mark.parametrize(("name", "limit"), OVERSIZED)
async def test_a_server_waits_for_a_configuration_that_it_can_read(
    tmp_path: Path, name: str, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"shard/{SHARD}/{name}"
    async with World(tmp_path, config(groups=GROUPS)) as world:
        world.waits = Waits(boot_retry=Backoff(0.05, 0.05))
        whole = world.store.contents().get(key)
        world.store.tamper(key, bytes(limit + 1))
        starting = asyncio.create_task(world.start("a"))
        logged = caplog.records
        await eventually(lambda: any(r.message.startswith("failed to start") and key in r.message for r in logged))
        assert not world.servers["a"].task.done()
        world.store.tamper(key, whole)
        await starting


async def test_a_registration_hides_no_other_operator(tmp_path: Path) -> None:
    async with World(tmp_path, config(groups=GROUPS)) as world:
        world.waits = Waits(admission=0.0)
        server = await world.start("a")
        damaged, other = await world.operator("acme"), await world.operator("globex")
        key = f"cluster/operator/acme.{damaged.identity.id}.json"
        whole = world.store.contents()[key]
        world.store.tamper(key, bytes(MAX_READ + 1))
        unknown = await damaged.refused("ListGroups")  # neither yes nor no
        assert (unknown.status, "try again" in str(unknown.message)) == (Status.UNAVAILABLE, True)
        await other.call("ListGroups")
        await (await world.operator("globex")).call("ListGroups")
        assert {each.operator for each in await world.operators().list()} >= {other.identity.id}
        assert not server.task.done()
        world.store.tamper(key, whole)
